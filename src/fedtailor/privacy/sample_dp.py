"""Differential privacy for single samples: for which runs private steps protect all that leaves a client, and what each client spends.

The guarantee is about what leaves a client: its replies, over all rounds, would be almost as likely without any one of its samples. It
holds if samples reach replies by private steps only. The trap: a head that is trained without noise is not free if the gradients of a body
pass through it. What stays at home for good (a personal model, closing steps) needs no noise, and is not protected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from fedtailor.errors import FedTailorError
from fedtailor.learning.private_steps import Draws, NamedDraws, PrivateSteps
from fedtailor.learning.protocol import Protocol
from fedtailor.methods import Method, methods
from fedtailor.nets.net import Net
from fedtailor.privacy.sampled_gaussian import epsilon_bound, epsilon_of, noise_for
from fedtailor.registry import check, option

EPSILON = "sample_epsilon"  # in what a client logs, and in a round's record: ε spent so far
CLIENT_SIDE = ("hello", "init", "fit", "sync")  # functions that run at a client and may decide what leaves it


@dataclass(frozen=True)
class SampleOptions:
    """How well single samples are protected."""

    sample_epsilon: float | None = option(
        None,
        "ε of each client's own samples: clients take private steps (DP-SGD), with noise solved for each",
        above=0.0,
    )
    sample_delta: float = option(1e-5, "δ that belongs to sample_epsilon: well below 1/samples", above=0.0, at_most=0.5)
    sample_clip: float = option(
        1.0, "longest gradient of a sample in a private step; longer ones are scaled down", above=0.0
    )

    def __post_init__(self) -> None:
        check(self, "privacy")
        if self.sample_epsilon is None:
            raise FedTailorError(
                "privacy.sample_delta and privacy.sample_clip belong to privacy.sample_epsilon: give it, such as 4."
            )


@dataclass(frozen=True)
class Budget:
    """What one client may spend: steps on Poisson batches of its samples, and the noise with which all of them cost at most ε."""

    samples: int
    batch: int
    steps: int
    noise: float
    clip: float
    epsilon: float  # of all its steps
    delta: float

    @property
    def rate(self) -> float:
        return min(self.batch, self.samples) / self.samples

    def spent(self, steps: int) -> float:
        """Return ε of the first steps, an upper bound that is exact for all of them."""
        if steps == 0:
            return 0.0
        return min(self.epsilon, epsilon_bound(self.rate, self.noise, steps, self.delta))

    def steps_after(self, taken: int, draws: Draws, home: tuple[str, ...]) -> PrivateSteps:
        """Return the private steps of a client that has taken some already."""
        return PrivateSteps(self.clip, self.noise, self.samples, self.batch, self.steps - taken, draws, home)


def budget(asked: SampleOptions, samples: int, batch: int, steps: int) -> Budget:
    """Solve for the noise with which so many steps on a client's samples cost at most the ε that is asked for."""
    assert asked.sample_epsilon is not None
    rate = min(batch, samples) / max(samples, 1)
    noise, epsilon = 0.0, 0.0
    if steps and samples:
        noise, epsilon = _solved(rate, steps, asked.sample_epsilon, asked.sample_delta)
    return Budget(samples, batch, steps, noise, asked.sample_clip, epsilon, asked.sample_delta)


@cache
def _solved(rate: float, steps: int, epsilon: float, delta: float) -> tuple[float, float]:
    noise = noise_for(rate, steps, epsilon, delta)
    return noise, epsilon_of(rate, noise, steps, delta)


# -- which runs are protected ---------------------------------------------------------------------------------------------------------


def why_not(method: type[Method]) -> str:
    """Return why private steps do not protect all that a method's clients send; empty if they do."""
    says = _rank(method, "sample_dp")
    if any(_rank(method, function) < says for function in CLIENT_SIDE):
        return "its class overrides what a client does without saying whether samples reach replies by training alone (`sample_dp`)"
    if method.sample_dp is True:
        return ""
    return method.sample_dp or "it does not say whether samples reach replies by training alone (`sample_dp`)"


def _rank(method: type[Method], name: str) -> int:
    """Return how far up its base classes a method defines a name."""
    return next(k for k, cls in enumerate(method.__mro__) if name in cls.__dict__)


def check_run(method: Method, protocol: Protocol, net: Net) -> None:
    """Refuse a run whose samples private steps cannot protect."""
    reason = why_not(type(method)) or ("it syncs every client after each round" if method.syncs_everyone else "")
    if reason:
        able = sorted(name for name, cls in methods.classes.items() if not why_not(cls))
        raise FedTailorError(
            f"privacy.sample_epsilon: {method.name} cannot protect single samples, because {reason}. Methods that can: {', '.join(able)}."
        )
    if protocol.class_weights == "balanced":
        raise FedTailorError(
            "privacy.sample_epsilon: class_weights = 'balanced' would put the counts of all labels into the loss of each sample. Give one "
            "number per class, or leave it out."
        )
    if protocol.patience:
        raise FedTailorError(
            "privacy.sample_epsilon: patience would end the run by scores on samples, which ε does not cover. Leave it out."
        )
    statistics = running_statistics(net)
    if statistics:
        raise FedTailorError(
            f"privacy.sample_epsilon: the net learns statistics of whole batches ({statistics[0]}), which no noise covers. Use group "
            "normalisation in place of batch normalisation (resnet18: net.norm=group)."
        )


def running_statistics(net: Net) -> list[str]:
    """Return the names of the layers that keep running statistics, or compute those of a batch."""
    norms = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    found = [(name, m) for name, m in net.named_modules() if isinstance(m, norms)]
    return [name for name, m in found if m.track_running_stats or isinstance(m, nn.modules.batchnorm._BatchNorm)]


# -- before the run -------------------------------------------------------------------------------------------------------------------


class Rehearsal(PrivateSteps):
    """Counts the private steps that a client's work would take, and takes none."""

    @classmethod
    def of(cls, samples: int, batch: int, home: tuple[str, ...]) -> Rehearsal:
        return cls(1.0, 0.0, samples, batch, sys.maxsize, NamedDraws(torch.Generator()), home)

    def check(self, samples: int) -> None:
        """Take any number of samples: none is drawn."""

    def drawn(self, steps: int) -> Iterator[torch.Tensor]:
        self.taken += steps
        return iter(())
