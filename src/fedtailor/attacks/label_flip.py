from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.attacks.base import Attack, attacks
from fedtailor.data.client_data import Split
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on wrong labels: class c becomes C − 1 − c, and a label of a multi-label task its opposite (Fang et al., 2020)."""

    paper = "Fang et al., Local Model Poisoning Attacks to Byzantine-Robust Federated Learning"
    year = 2020

    def check_data(self, task: Task, x: Tensor) -> None:
        if task.kind == "regression":
            raise FedTailorError(
                "attack=label-flip needs labels to flip, but this is a regression task. Take another attack."
            )

    def poisoned(self, train: Split, task: Task, generator: torch.Generator) -> Split:
        return replace(train, y=1 - train.y if task.kind == "multilabel" else task.classes - 1 - train.y)
