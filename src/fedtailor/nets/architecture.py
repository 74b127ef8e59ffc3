"""What a net is built for, and the base of everything that can be asked for as `net=…`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedtailor.registry import Registry, check


@dataclass(frozen=True)
class Task:
    """The shape of one sample (channels first for images, tokens for text), the number of classes, and for text the vocabulary."""

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0


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
