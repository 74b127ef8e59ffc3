"""A multi-layer perceptron for tables and precomputed features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import relu

from fedtailor.data.task import Task
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fitting import require
from fedtailor.registry import option


class Perceptron(nn.Module):
    """Linear layers with ReLU on the flattened sample, then the head `fc`."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        for layer in self.hidden:
            z = relu(layer(z))
        return self.fc(z)


@nets.register("mlp", "dnn")
@dataclass(frozen=True)
class MLP(Architecture):
    """Fully connected layers with ReLU, for tables and samples of any shape; without hidden layers, logistic regression."""

    paper: ClassVar[str] = "McMahan et al., 2017"

    hidden: tuple[int, ...] = option(
        (200,), "widths of the hidden layers; empty: logistic regression (an empty body)", at_least=1, at_most=2**16
    )

    def build(self, task: Task) -> nn.Module:
        require(self, task, "numbers")
        return Perceptron(math.prod(task.shape), self.hidden, task.outputs)
