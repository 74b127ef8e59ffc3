"""A participant's samples as a net sees them: normalized floats (or token ids) on the run's device."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedtailor.data.client_data import Split
from fedtailor.data.federation import Federation
from fedtailor.data.task import CLASSES
from fedtailor.errors import FedTailorError
from fedtailor.learning.augment import flip_crop
from fedtailor.learning.protocol import Protocol
from fedtailor.learning.sample_weights import counts, taken, weighted, weights_of
from fedtailor.nets.net import Net

ENDLESS = sys.maxsize  # epochs, of batches that are taken for as long as steps are
CHUNK = 256  # samples in one forward pass when nothing trains: larger ones no longer fit into a core's cache


class Samples:
    """Normalized once when `ready` (fast, four bytes per value), else as each batch is taken (small, memory-mapped files included).

    Shuffled batches are augmented if the protocol says so; samples taken in order, to embed or to score, never are.
    """

    def __init__(self, split: Split, federation: Federation, protocol: Protocol, *, ready: bool) -> None:
        self.split = split
        self.device = torch.device(protocol.device)
        self.dtype = protocol.torch_dtype
        channels = (-1,) + (1,) * (len(federation.shape) - 1)
        self.mean = torch.tensor(federation.mean, dtype=self.dtype, device=self.device).view(channels)
        self.std = torch.tensor(federation.std, dtype=self.dtype, device=self.device).view(channels)
        self.is_pixels = split.x.dtype == torch.uint8  # only these are normalized
        self.is_tokens = not self.is_pixels and not split.x.is_floating_point()
        self.augmented = protocol.augment != "none"
        if self.augmented and (len(federation.shape) != 3 or self.is_tokens):
            raise FedTailorError(
                f"augment = {protocol.augment!r} needs images, but a sample here has shape {federation.shape}. Leave it out."
            )
        self.task = federation.task
        floats = self.task.kind not in CLASSES
        y = split.y.to(self.device, self.dtype) if floats else split.y.to(self.device)
        self.weights = None if split.weight is None else split.weight.to(self.device, self.dtype)
        self.y = weighted(y, self.weights)
        self.x = self._normalized(torch.arange(len(split))) if ready else None
        self._features: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return self.y.shape[0]  # in a tenth of the time of len(self.y), and it is asked often

    def take(self, index: Tensor) -> Tensor:
        return self.x[index.to(self.device)] if self.x is not None else self._normalized(index)

    def subset(self, rows: Tensor) -> Samples:
        """Some of the samples, in this order, as samples of their own."""
        some = copy.copy(self)
        here = rows.to(self.device)
        some.split = self.split.subset(rows)
        some.y = taken(self.y, here)
        some.weights = weights_of(some.y)
        some.x = None if self.x is None else self.x[here]
        some._features = None
        return some

    def batches(self, size: int, epochs: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches, see `shuffled`; data that is ready is gathered once per epoch."""
        for x, y in self._shuffled(size, epochs, generator):
            yield self.view(x, generator), y

    def view(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of some samples if the protocol augments, else the samples themselves."""
        if not self.augmented:
            return x
        black = -self.mean / self.std if self.is_pixels else torch.zeros_like(self.mean)
        return flip_crop(x, black, generator)

    def _shuffled(self, size: int, epochs: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        if self.x is not None:
            yield from shuffled_pairs(self.x, self.y, size, epochs, generator)
        else:
            some = counts(self.y)  # else steps would be sought without end
            for index in shuffled(len(self) if some else 0, size, epochs, generator):
                y = taken(self.y, index.to(self.device))
                if counts(y):
                    yield self.take(index), y

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Everything in order, in large pieces."""
        for start in range(0, len(self), CHUNK):
            rows = slice(start, min(start + CHUNK, len(self)))
            x = self._normalized(torch.arange(rows.start, rows.stop)) if self.x is None else self.x[rows]
            yield x, self.y[rows]

    def through(self, net: nn.Module, call: Callable[[Tensor], Tensor]) -> Tensor:
        """What a net, or a part of it, makes of all samples, in order."""
        net.eval()
        return torch.cat([call(x) for x, _ in self.chunks()])

    @torch.no_grad()
    def embedded(self, net: Net, compute: Callable[[], Tensor] | None = None) -> Tensor:
        """Features of all samples, in order; those of the last body are remembered, also from one round to the next."""
        body = net.edition()
        if self._features is None or self._features[0] != body:
            self._features = (body, self.through(net, net.features) if compute is None else compute())
        features = self._features[1]
        if self.x is None:  # where memory is too short for the samples, it is for their features
            self._features = None
        return features

    def _normalized(self, index: Tensor) -> Tensor:
        raw = self.split.take(index).to(self.device)
        if raw.dtype == torch.uint8:
            return raw.to(self.dtype).div_(255).sub_(self.mean).div_(self.std)
        return raw.to(self.dtype) if raw.is_floating_point() else raw.long()


def shuffled(n: int, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index batches in a new order each epoch. A ragged last batch is left out, but n < size is one batch of n."""
    size = min(size, n)
    for _ in range(epochs if n else 0):
        order = torch.randperm(n, generator=generator)
        yield from (order[start : start + size] for start in range(0, n - size + 1, size))


def shuffled_pairs(
    x: Tensor, y: Tensor, size: int, epochs: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of `shuffled` as rows of x and y, but those whose samples all have weight zero."""
    n = len(y) if counts(y) else 0
    size = min(size, n)
    for _ in range(epochs if n else 0):
        order = torch.randperm(n, generator=generator).to(x.device)
        mixed_x, mixed_y = x[order], taken(y, order)
        for start in range(0, n - size + 1, size):
            rows = slice(start, start + size)
            batch = taken(mixed_y, rows)
            if counts(batch):
                yield mixed_x[rows], batch
