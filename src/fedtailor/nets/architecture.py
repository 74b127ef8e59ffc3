"""The base of everything that can be asked for as `net=…`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from fedtailor.data.task import Task
from fedtailor.registry import Registry, check


class Architecture(ABC):
    """A net by name. Subclasses are frozen dataclasses; their fields are the options `net.*`.

    `build` returns a plain module that maps a batch to logits and ends in the linear layer that becomes the head.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check(self, "net")

    @abstractmethod
    def build(self, task: Task) -> nn.Module: ...


nets: Registry[Architecture] = Registry("net")
