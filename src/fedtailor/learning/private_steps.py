"""Steps with differential privacy for single samples: DP-SGD (Abadi et al., 2016).

A private step draws each sample with the same chance (Poisson sampling), clips each drawn sample's gradient to a length, adds Gaussian
noise to their sum, and divides by the expected number of drawn samples. So what a step reveals of any one sample is bounded.
`fedtailor.privacy.sample_dp` says for which methods this protects all that leaves a client, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning.losses import Loss
from fedtailor.learning.mixing import State
from fedtailor.learning.per_sample import clipped_sum, fast_clipped_sum, layers_of, mixes_samples
from fedtailor.learning.sample_weights import taken
from fedtailor.nets.net import Net, Part, Pull

if TYPE_CHECKING:
    from fedtailor.learning.descent import Descent
    from fedtailor.learning.kernels import Kernel
    from fedtailor.learning.participants import Participant

STEPS = "private_steps"  # in a client's state: how many it has taken so far


def steps_of(state: State) -> int:
    """Return how many private steps a client has taken so far."""
    return int(state[STEPS]) if STEPS in state else 0


class Draws(Protocol):
    """Random numbers of one client's work."""

    def uniform(self, count: int) -> Tensor: ...

    def normal(self, count: int, dtype: torch.dtype) -> Tensor: ...


class NamedDraws:
    """Draws from a named stream, which a simulation can repeat."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def normal(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(count, generator=self.generator, dtype=dtype)


@dataclass
class PrivateSteps:
    """The private steps of one client's work.

    `noise` is the standard deviation of a step's noise in each entry, in multiples of `clip`. `left` is how many steps the client may still
    take. `home` are the roles of nets that influence nothing that leaves the client: these train without noise.
    """

    clip: float
    noise: float
    samples: int
    batch: int
    left: int
    draws: Draws
    home: tuple[str, ...] = ()
    taken: int = 0
    _used: bool = True  # whether a step has been taken on the batch that was drawn last

    @property
    def expected(self) -> int:
        """The expected size of a batch, by which sums are divided: the actual one would reveal who was drawn."""
        return min(self.batch, self.samples)

    @property
    def rate(self) -> float:
        """The chance of each sample to be in a batch."""
        return self.expected / self.samples

    def check(self, samples: int) -> None:
        """Refuse to draw from some of the samples only: each would be drawn more often than is accounted."""
        if samples != self.samples:
            raise FedTailorError(
                "Privacy for samples needs a method that trains on all samples of a client, not on a part of them."
            )

    def drawn(self, steps: int) -> Iterator[Tensor]:
        """Yield the rows of Poisson batches, some of which may be empty, for as many steps as are left."""
        for _ in repeat(None, min(steps, self.left)):
            self.left -= 1
            self.taken += 1
            self._used = False
            yield (self.draws.uniform(self.samples) < self.rate).nonzero()[:, 0]

    def release(self, total: Tensor) -> Tensor:
        """Return a sum of clipped gradients with noise: all that is ever known of the samples of a batch."""
        noise = self.draws.normal(len(total), total.dtype).to(total.device)
        return noise.mul_(self.noise * self.clip).add_(total)

    def gradient(self, total: Tensor) -> Tensor:
        """Return the noisy mean gradient of a sum. Each batch has one: a second look at it would cost more than is accounted."""
        if self._used:
            raise FedTailorError("Privacy for samples allows one step per batch, but the method takes several.")
        self._used = True
        return self.release(total).div_(self.expected)


def is_private(party: Participant, part: Part) -> bool:
    """Whether steps on this part have to be private: all are, but those of nets that stay at home."""
    return party.private is not None and party.role(part.net) not in party.private.home


def private_batches(
    party: Participant, epochs: int | None, on: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Poisson batches of a client's samples (or of their features `on`), as many as plain training would take."""
    private, samples = party.private, party.samples
    assert private is not None
    private.check(len(samples))
    epochs, steps = party._duration(epochs)
    asked = epochs * (private.samples // private.expected) if steps is None else steps
    if asked > private.left:
        party.warn(f"takes only {private.left} of {asked} steps: its privacy budget (sample_epsilon) is spent")
    for rows in private.drawn(asked):
        y = taken(samples.y, rows.to(samples.device))
        yield (samples.view(samples.take(rows), party.rng("views")) if on is None else on[0][rows.to(on[0].device)]), y


def private_kernel(descent: Descent, part: Part, loss: Loss | None, pull: Pull | None, *, features: bool) -> Kernel:
    """The private step on a batch: on the task's loss, or on a loss of a method's own, which sees one sample at a time."""
    party, layers = descent.participant, layers_of(part)
    private = party.private
    assert private is not None
    weights = party.class_weights
    if loss is not None and (weights is not None or party.samples.weights is not None):
        raise FedTailorError(
            "Privacy for samples with weights of classes or samples needs a method that trains on the task's own loss."
        )

    def each(net: Net, x: Tensor, y: Tensor) -> Tensor:
        return party.task.losses(net.classify(x) if features else net(x), y, weights, party.sample_weights(y))

    def total(x: Tensor, y: Tensor) -> Tensor:
        if not len(y):
            return part.weights.detach().zero_()
        if loss is not None or layers is None:
            return clipped_sum(part, loss or (lambda net, x, y: each(net, x, y).sum()), x, y, private.clip)
        return fast_clipped_sum(part, layers, each, x, y, private.clip)

    def step(x: Tensor, y: Tensor) -> None:
        if not features and mixes_samples(part.net, x):
            raise FedTailorError(
                "The net's output for a sample depends on the others of its batch: no sample can be protected."
            )
        descent.along(private.gradient(total(x, y)), part, pull)

    return step
