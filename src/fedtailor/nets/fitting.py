"""Match nets and kinds of samples, so that a net that does not fit is refused before training, naming one that does."""

from __future__ import annotations

from typing import Literal

from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.nets.architecture import Architecture

SampleKind = Literal["images", "series", "numbers", "text"]

NAMES = {
    "images": "images (channels, height, width)",
    "series": "series (channels, time)",
    "numbers": "plain numbers",
    "text": "text (token ids, with a vocabulary)",
}
FITTING = {"images": "cnn, lenet, resnet18 or vit", "series": "cnn1d", "numbers": "mlp", "text": "fasttext"}
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
    return {"images": "cnn", "series": "cnn1d", "numbers": "mlp", "text": "fasttext"}[kind(task)]


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
