"""Base class of robust means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedtailor.registry import Registry, check
from fedtailor.robust.changes import Changes


@dataclass(frozen=True)
class RobustMean(ABC):
    """Base class of robust means. Subclasses are frozen dataclasses; their fields are the options `robust.*`.

    Every reply counts alike: how many samples a client trained on is known only from what it says itself.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    year: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check(self, "robust")

    @abstractmethod
    def __call__(self, changes: Changes) -> Tensor:
        """Return the change of an entry that the server makes, from those that clients ask for."""

    @abstractmethod
    def tolerates(self, replies: int) -> int:
        """Return how many of so many replies may be hostile, whatever they are, before the result is no longer bounded by the others."""


robust_means: Registry[RobustMean] = Registry("robust")
