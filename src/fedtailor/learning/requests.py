"""What a client asks to have computed while its method waits: training and forward passes.

A request is computed alone, or, by the stacked engine, together with the same request of other clients (`stacked`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.learning.kernels import Kernel
from fedtailor.learning.losses import Loss, NearPrototypes
from fedtailor.learning.sample_weights import weights_of
from fedtailor.learning.samples import CHUNK, Samples, shuffled_pairs
from fedtailor.nets.net import Net, Part, Pull

if TYPE_CHECKING:
    from fedtailor.learning.descent import Descent


class Batches:
    """Shuffled batches of rows of x and y, for so many epochs or, if that ends sooner, steps."""

    def __init__(
        self, x: Tensor, y: Tensor, size: int, epochs: int, steps: int | None, generator: torch.Generator
    ) -> None:
        self.x, self.y, self.size, self.epochs, self.steps, self.generator = x, y, size, epochs, steps, generator
        self.rows = min(size, y.shape[0])  # samples of one batch
        self.per_epoch = y.shape[0] // self.rows if self.rows else 0
        self.count = min(self.per_epoch * epochs, sys.maxsize if steps is None else steps)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(shuffled_pairs(self.x, self.y, self.size, self.epochs, self.generator), self.steps)

    def order(self) -> Iterator[Tensor]:
        """For each epoch, the rows of its batches, (batches, rows of a batch)."""
        for _ in range(self.epochs):
            order = torch.randperm(self.y.shape[0], generator=self.generator)
            yield order[: self.per_epoch * self.rows].view(self.per_epoch, self.rows)


@dataclass(frozen=True)
class Forward:
    """The outputs of a net, or the features under its head, of all samples in order."""

    net: nn.Module
    samples: Samples
    features: bool = False

    @property
    def kind(self) -> Hashable | None:
        """Equal for requests that can be computed together; None for one that cannot."""
        return ("forward", self.net, self.features) if isinstance(self.net, Net) and len(self.samples) else None

    def alone(self) -> Any:
        if isinstance(self.net, Net) and self.features:
            with torch.no_grad():  # not in inference mode, whose tensors cannot be trained on
                return self.samples.through(self.net, self.net.features)
        with torch.inference_mode():
            return self.samples.through(self.net, self.net)


class Counted(NamedTuple):
    """Outputs, how many of them are right, and the summed loss."""

    outputs: Tensor
    correct: int
    loss: float


@dataclass(frozen=True)
class Scoring(Forward):
    """The outputs of a net of all samples, counted."""

    @property
    def kind(self) -> Hashable | None:
        return None if super().kind is None else ("score", self.net)

    def alone(self) -> Counted:
        return self.counted(super().alone())

    @torch.inference_mode()
    def counted(self, outputs: Tensor) -> Counted:
        samples, task = self.samples, self.samples.task
        correct = torch.zeros((), dtype=torch.long, device=samples.device)
        loss = torch.zeros((), dtype=torch.float64, device=samples.device)
        for some, y in zip(outputs.split(CHUNK), samples.y.split(CHUNK), strict=True):
            correct += task.correct(some, y)
            loss += task.summed_loss(some, y)
        return Counted(outputs, int(correct), float(loss))


@dataclass(frozen=True)
class Training:
    """Steps on one part of a net, each by a kernel on one of the batches."""

    descent: Descent
    part: Part
    batches: Iterable[tuple[Tensor, Tensor]]
    step: Kernel
    loss: Loss | None  # of the method's own; None is the task's
    features: bool  # x is what the head sees
    pull: Pull | None
    average: int  # the part ends as the mean of its weights at the ends of the last so many epochs
    per_epoch: int  # batches

    @property
    def kind(self) -> Hashable | None:
        """Equal for requests that can be computed together; None for one that cannot."""
        batches, descent = self.batches, self.descent
        if not isinstance(batches, Batches) or not batches.count or not self.part.parameters:
            return None
        if descent.keeps or weights_of(batches.y) is not None or not (self.loss is None or self.near is not None):
            return None
        if descent.participant.task.kind == "multilabel" and descent.participant.class_weights is not None:
            return None
        pull = None if self.pull is None else (self.pull.strength, self.pull.on)
        rule = (descent.lr, descent.protocol.optimizer, descent.protocol.momentum)
        near = None if self.near is None else (self.near.weight, self.near.prototypes.shape)
        return ("train", self.part, self.features, rule, padded(batches), pull, near, self.average)

    @property
    def near(self) -> NearPrototypes | None:
        """The loss, if it is the task's and a distance to prototypes: the only one of a method's own that is computed together."""
        loss = self.loss
        if self.features or not isinstance(loss, NearPrototypes):
            return None
        return loss if loss.criterion == self.descent.participant.loss else None

    @property
    def net(self) -> Net:
        return self.part.net

    @property
    def samples(self) -> Samples:
        return self.descent.participant.samples

    def alone(self) -> None:
        for x, y in self.descent.over(self._averaging() if self.average else self.batches):
            self.step(x, y)

    def _averaging(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches; at their end, the part is set to its mean."""
        ends: deque[Tensor] = deque(maxlen=self.average)
        for count, batch in enumerate(self.batches, start=1):
            yield batch
            if count % self.per_epoch == 0:
                ends.append(self.part.vector)
        if ends:
            self.part.vector = torch.stack(list(ends)).mean(0)


Request = Forward | Training


def padded(batches: Batches) -> int:
    """The rows to which batches of a stack are filled up: that of a client must not depend on who else is in it."""
    return min(batches.size, power_of_two(batches.rows))


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
