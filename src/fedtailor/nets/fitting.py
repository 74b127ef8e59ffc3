"""Match nets and kinds of samples: the default net, and a refusal before training of a net that does not fit, naming one that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.registry import options

SampleKind = Literal["images", "series", "numbers", "text"]

NAMES = {
    "images": "images (channels, height, width)",
    "series": "series (channels, time)",
    "numbers": "plain numbers",
    "text": "text (token ids, with a vocabulary)",
}
FITTING = {"images": "cnn, lenet, resnet18 or vit", "series": "cnn1d", "numbers": "mlp", "text": "fasttext"}
USUAL: dict[SampleKind, str] = {"images": "cnn", "series": "cnn1d", "numbers": "mlp", "text": "fasttext"}
HINTS = {
    ("images", "series"): " Images without channels need a first dimension of 1.",
    ("text", "numbers"): " If these are token ids, the data set must state its vocabulary.",
}


def kind(task: Task) -> SampleKind:
    """Return the kind of a task's samples, by their vocabulary and number of dimensions."""
    if task.vocabulary > 0:
        return "text"
    return {3: "images", 2: "series"}.get(len(task.shape), "numbers")  # type: ignore[return-value]


def fitting_net(task: Task) -> str:
    """Return the default net for these samples."""
    return USUAL[kind(task)]


@dataclass(frozen=True)
class FittingNet(Architecture):
    """Stands for the net that fits the samples until these are read; `options` are those that it is given."""

    name = "one that fits"

    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse options that none of the nets could take."""
        known = {name: {o.name for o in options(nets.find(name))} for name in USUAL.values()}
        if not any(_takes(name, self.options) for name in known):
            nets.build(max(known, key=lambda name: len(known[name] & set(self.options))), self.options)

    def chosen(self, task: Task) -> Architecture:
        return nets.build(fitting_net(task), self.options)

    def build(self, task: Task) -> nn.Module:
        return self.chosen(task).build(task)


def _takes(name: str, values: Mapping[str, Any]) -> bool:
    try:
        nets.build(name, values)
    except FedTailorError:
        return False
    return True


def require(net: Architecture, task: Task, wanted: SampleKind, smallest: int = 1) -> None:
    """Refuse samples that are not `wanted`, or whose height, width or length is below `smallest`."""
    found = kind(task)
    if found != wanted and not (wanted == "numbers" and found != "text"):
        hint = HINTS.get((wanted, found), "")
        raise FedTailorError(
            f"The net '{net.name}' reads {NAMES[wanted]}, but the samples here are {NAMES[found]}, each of shape {task.shape}. "
            f"Nets that fit: {FITTING[found]}.{hint}"
        )
    if wanted == "text" and len(task.shape) != 1:
        raise FedTailorError(
            f"The net '{net.name}' reads a row of token ids, but a sample here has shape {task.shape}: make it (tokens,)."
        )
    sides = task.shape[1:] if wanted in ("images", "series") else task.shape
    if min(sides, default=0) < smallest or min(task.shape) < 1:
        least = "×".join([str(smallest)] * len(sides)) or "1"
        raise FedTailorError(
            f"The net '{net.name}' needs samples of at least {least}, but a sample here has shape {task.shape}."
            f"{'' if wanted == 'numbers' else ' A net for samples of any size: mlp.'}"
        )
