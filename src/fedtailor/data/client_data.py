"""What one participant holds: labelled samples to train on and to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError


@dataclass(frozen=True, repr=False, eq=False)
class Split:
    """Samples of one participant in their compact type; `x` is its own array, or a memory-mapped pool of which it holds `rows`.

    `weight` says how much each sample counts in the training loss; None: all alike.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weight is None:
            return
        if self.weight.shape != self.y.shape[:1]:
            raise FedTailorError(
                f"Sample weights have shape {tuple(self.weight.shape)}, but there are {len(self.y)} samples: give one number each."
            )
        sound = self.weight.isfinite() & (self.weight >= 0)
        if not sound.all():
            first = int((~sound).nonzero()[0])
            raise FedTailorError(
                f"Sample weights must be finite and not negative, but sample {first} has {self.weight[first].item()}."
            )

    def take(self, index: Tensor) -> Tensor:
        """Return the raw samples at these positions, counted within this split."""
        return self.x[index] if self.rows is None else self.x[self.rows[index]]

    def subset(self, index: Tensor) -> Split:
        """Return a split of some of the samples, in this order, without copying them."""
        return Split(self.x, self.y[index], index if self.rows is None else self.rows[index], self._weights(index))

    def _weights(self, index: Tensor) -> Tensor | None:
        return None if self.weight is None else self.weight[index]

    def held_out(self, count: int, generator: torch.Generator) -> tuple[Split, Split]:
        """Hold out `count` samples drawn at random; return the rest, in its order, and the held-out samples."""
        order = torch.randperm(len(self), generator=generator)
        return self.subset(order[count:].sort().values), self.subset(order[:count])

    def apart(self, index: Sequence[int] | None = None) -> Split:
        """Copy some samples, or all, so that they share no memory with a pool or another split."""
        chosen = torch.arange(len(self)) if index is None else torch.tensor(index, dtype=torch.int64)
        return Split(self.take(chosen), self.y[chosen], weight=self._weights(chosen))

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Split({len(self):,} samples of {shape_words(self.x.shape[1:])} {dtype_word(self.x)})"


@dataclass(frozen=True, repr=False, eq=False)
class RemoteSplit(Split):
    """Samples that stay at their site: only their kind and number are known here."""

    count: int = 0

    def held_out(self, count: int, generator: torch.Generator) -> tuple[Split, Split]:
        return replace(self, count=len(self) - count), replace(self, count=count)

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, eq=False)
class ClientData:
    """What one client holds."""

    name: str
    train: Split
    test: Split
    validation: Split | None = None  # held out of the training samples; see `Federation.with_validation`
    triggered: Split | None = (
        None  # test samples with an attack's trigger, labelled as the attackers want; see `attacks.backdoor`
    )

    def apart(self) -> ClientData:
        return replace(
            self,
            train=self.train.apart(),
            test=self.test.apart(),
            validation=None if self.validation is None else self.validation.apart(),
            triggered=None if self.triggered is None else self.triggered.apart(),
        )


def shape_words(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def dtype_word(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
