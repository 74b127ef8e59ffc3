"""Base class of attacks."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtailor.data.client_data import Split
from fedtailor.data.task import Task
from fedtailor.registry import Registry, check, option


@dataclass(frozen=True)
class Attack(ABC):
    """Base class of attacks. Subclasses are frozen dataclasses; their fields are the options `attack.*`.

    An attack changes the samples that an attacker trains on, or the changes that it sends. Otherwise attackers do as their method says.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0

    share: float = option(
        0.2, "share of the clients that attack, drawn by the seed for the whole run", at_least=0, at_most=1
    )
    factor: float = option(1.0, "attackers multiply the change that they send by it", above=0)

    def __post_init__(self) -> None:
        check(self, "attack")

    def check_data(self, task: Task, x: Tensor) -> None:
        """Refuse a task, or samples such as `x`, that this attack cannot change."""

    def poisoned(self, train: Split, task: Task, generator: torch.Generator) -> Split:
        """Return what an attacker trains on."""
        return train

    def triggered(self, test: Split) -> Split | None:
        """Return test samples that the attackers want to be taken for what their labels say; None for attacks with no such aim."""
        return None

    def change(self, change: Tensor, generator: torch.Generator) -> Tensor:
        """Return the change of an entry that an attacker sends in place of the one it trained."""
        return self.factor * change


attacks: Registry[Attack] = Registry("attack")
