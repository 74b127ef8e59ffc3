"""Differential privacy of clients: nobody can tell from what the server publishes whether a client took part, whatever its data.

In each round the change that a client's protected entries make is clipped, over all of them together; the changes are summed, Gaussian
noise is added once, and the sum is divided by the number of participants that is expected. An entry that was not sent down is its own
change. A reply that is missing or refused is a change of zero.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload, Reply, Server
from fedtailor.learning.mixing import Weights
from fedtailor.privacy.accounting import Accountant, Sampling, default_delta, solve_noise
from fedtailor.privacy.noise import Normal
from fedtailor.privacy.rules import DPOptions

log = logging.getLogger("fedtailor")

CLIP = "privacy.clip"  # in the server's state, where the clip adapts
CLIP_RATE = 0.2  # η of adaptive clipping, and how much of the participants its noise is (Andrew et al., 2021)
COUNT_NOISE = 0.05
WIDEST = 1e4  # how far an adaptive clip may move from the first, in either direction


@dataclass(frozen=True)
class Amount:
    """How much noise a run has, what it spends, and how many rounds that allows."""

    accountant: Accountant
    allowed: int  # rounds, by its budget

    @classmethod
    def of(cls, dp: DPOptions, sampling: Sampling, rounds: int) -> Amount:
        """Solve for the noise of the whole run, or count the rounds that the given noise allows."""
        delta = default_delta(sampling.clients) if dp.delta is None else dp.delta
        if dp.noise is None:
            assert dp.epsilon is not None
            accountant = Accountant(solve_noise(dp.epsilon, delta, sampling, rounds), sampling, delta)
            return cls(accountant, rounds)
        accountant = Accountant(dp.noise, sampling, delta)
        allowed = rounds if dp.epsilon is None else accountant.rounds_within(dp.epsilon, rounds) if dp.noise else 0
        if not allowed:
            raise FedTailorError(
                f"privacy.noise = {dp.noise:g} spends more than privacy.epsilon = {dp.epsilon:g} in one round. Raise either, or leave "
                "noise out: it is solved for."
            )
        return cls(accountant, allowed)

    def spent(self, releases: int) -> dict[str, float]:
        """Return what the record of a round says, after so many releases."""
        if not self.accountant.noise:
            return {"noise_multiplier": 0.0}
        return {
            "epsilon": self.accountant.spent(releases, self.allowed),
            "epsilon_rdp": self.accountant.rdp_epsilon(releases),
            "delta": self.accountant.delta,
            "noise_multiplier": self.accountant.noise,
        }


def clipped_norm(change: Mapping[str, Tensor], clip: float) -> tuple[float, float]:
    """Return ‖change‖ over all its entries, and the factor that makes it at most `clip` long; a factor of 0 if it is not finite."""
    norm = math.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64).item() for t in change.values()))
    if not math.isfinite(norm):
        return norm, 0.0
    return norm, min(1.0, clip / norm) if norm else 1.0


def change_of(payload: Payload, base: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return what a client's entries changed of `base`; an entry that is not in it is its own change."""
    return {n: payload[n] - base[n] if n in base else payload[n] for n in names if n in payload}


def common_base(names: Sequence[str], sent: Mapping[int, Payload], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what every client was sent under the protected names; where nobody was drawn, what would have been sent."""
    base = {} if sent else {name: state[name] for name in names if name in state}
    for payload in sent.values():
        for name in names:
            first = base.setdefault(name, payload[name]) if name in payload else None
            if first is not None and first is not payload[name] and not torch.equal(first, payload[name]):
                raise FedTailorError(
                    f"privacy.{name} = dp: clients are sent different {name}, so that a mean of their changes tells who was there."
                )
    return base


def tell_weights(told: set[str], name: str, by: Weights) -> None:
    """Warn once that the mean of an entry has other weights than the method gives it."""
    if by != "clients" and name not in told:
        told.add(name)
        log.warning("privacy.%s = dp: its mean has equal weights, as weights that depend on data tell of it.", name)


@dataclass(frozen=True)
class SummedDP:
    """Differential privacy whose noise is in a secure sum already: what is left for the server is to count."""

    names: tuple[str, ...]
    amount: Amount

    def is_spent(self, round: int) -> bool:
        return round >= self.amount.allowed

    def record(self, server: Server) -> dict[str, float]:
        """Return what was spent, for the record of a round; a round whose sum was lost is counted as well."""
        return self.amount.spent(server.round)


@dataclass
class ClientDP:
    """The differentially private mean of a run's protected entries: `server.means` has its `mean` for each."""

    names: tuple[str, ...]
    options: DPOptions
    amount: Amount
    normal: Normal
    told: set[str] = field(default_factory=set)
    base: dict[str, Tensor] = field(default_factory=dict)  # what was sent in this round
    changes: dict[int, tuple[Payload, float, float]] = field(default_factory=dict)  # client -> entries, norm, factor
    shapes: dict[str, Tensor] = field(default_factory=dict)  # of entries that are not sent, as last seen

    def take(
        self, server: Server, replies: Sequence[Reply], sent: Mapping[int, Payload]
    ) -> tuple[list[Reply], dict[int, str]]:
        """Take the protected entries out of the replies, so that the method cannot look at them.

        Returns the rest of each reply, and client -> why its reply counts as zero.
        """
        self.base, self.changes = common_base(self.names, sent, server.state), {}
        clip, faults = self.clip(server), dict[int, str]()
        for reply in replies:
            own = {name: reply.payload[name] for name in self.names if name in reply.payload}
            strange = [n for n, t in own.items() if not t.is_floating_point() or t.shape != self._like(n, t).shape]
            norm, factor = (math.nan, 0.0) if strange else clipped_norm(change_of(own, self.base, own), clip)
            if strange or not math.isfinite(norm):
                faults[reply.client] = f"its '{strange[0]}' has another shape" if strange else "it is not finite"
            else:
                self.changes[reply.client] = own, norm, factor
        rest = [
            Reply(r.client, r.samples, {n: t for n, t in r.payload.items() if n not in self.names})
            for r in replies
            if r.client not in faults
        ]
        return rest, faults

    def mean(self, server: Server, replies: Sequence[Reply], name: str, by: Weights) -> Tensor:
        """Return base + (Σ clipped changes + noise) / expected number of participants, with equal weights whatever `by` is."""
        tell_weights(self.told, name, by)
        total = self.total(replies, name)
        noise = self.normal(server.round, name, total) * (self.sum_noise * self.clip(server))
        mean = (total + noise.to(total)) / self.amount.accountant.sampling.expected
        base = self.base.get(name)
        like = self.shapes[name] if base is None else base
        return (mean if base is None else mean + base).to(like)

    def total(self, replies: Sequence[Reply], name: str) -> Tensor:
        """Return the sum of the clipped changes, before any noise. One client moves it by at most the clip."""
        like = self.base.get(name, self.shapes.get(name))
        if like is None:
            raise FedTailorError(f"No client has sent '{name}' yet, so its mean is not known.")
        total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        for reply in replies:
            own, _, factor = self.changes.get(reply.client, ({}, 0.0, 0.0))
            if name in own:
                total.add_(change_of(own, self.base, [name])[name], alpha=factor)
        return total

    def settle(self, server: Server) -> None:
        """End a round: with a quantile, move the clip so that this share of the changes is left whole, as far as noise lets us see."""
        if self.options.quantile is None:
            return
        clip, expected = self.clip(server), self.amount.accountant.sampling.expected
        whole = torch.tensor(sum(0.5 if norm <= clip else -0.5 for _, norm, _ in self.changes.values()))
        noisy = whole + self._count_noise * self.normal(server.round, "clip", whole.double())
        share = noisy.item() / expected + 0.5
        moved = clip * math.exp(-CLIP_RATE * (share - self.options.quantile))
        first = self.options.clip
        server.state[CLIP] = torch.tensor(min(max(moved, first / WIDEST), first * WIDEST), dtype=torch.float64)

    def clip(self, server: Server) -> float:
        return float(server.state[CLIP]) if CLIP in server.state else self.options.clip

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of the sum: where the clip adapts, larger by what its own noise takes of the whole."""
        noise = self.amount.accountant.noise
        if self.options.quantile is None or not noise:
            return noise
        return (noise**-2 - (2 * self._count_noise) ** -2) ** -0.5  # a count of ±½ has sensitivity ½

    @property
    def _count_noise(self) -> float:
        noise, expected = self.amount.accountant.noise, self.amount.accountant.sampling.expected
        return max(COUNT_NOISE * expected, noise) if noise else 0.0

    def is_spent(self, round: int) -> bool:
        """Return whether another round would spend more than the budget, or than all rounds were to spend."""
        return round + self.normal.repeated >= self.amount.allowed

    def record(self, server: Server) -> dict[str, float]:
        """Return what was spent, for the record of a round."""
        adapting = {"clip": self.clip(server)} if self.options.quantile is not None else {}
        return {**self.amount.spent(server.round + self.normal.repeated), **adapting}

    def _like(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor of the shape that an entry has to have."""
        return self.base[name] if name in self.base else self.shapes.setdefault(name, torch.empty_like(tensor))
