"""Base class of the nets that `net=…` can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from fedtailor.data.task import Task
from fedtailor.registry import Registry, check


class Architecture(ABC):
    """Base class of nets with a name. Subclasses are frozen dataclasses whose fields are the options `net.*`.

    `build` returns a plain module that maps a batch to logits and ends in the linear layer that becomes the head.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check(self, "net")

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """Build the module for a task, with random initial weights."""


nets: Registry[Architecture] = Registry("net")
