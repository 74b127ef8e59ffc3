"""What a run's rules for names make of its simulation: who is drawn, how entries are averaged, and what that spends."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypedDict

from fedtailor.errors import FedTailorError
from fedtailor.learning import Server
from fedtailor.privacy.accounting import Participation, Sampling
from fedtailor.privacy.client_dp import Amount, ClientDP, SummedDP
from fedtailor.privacy.noise import NamedNoise, SecretNoise
from fedtailor.privacy.rules import Privacy, Rule

log = logging.getLogger("fedtailor")

LARGE_DELTA = 0.01


class Drawing(TypedDict, total=False):
    """Keywords of `select`."""

    poisson: bool
    seed: int


def protect(
    privacy: Privacy | None,
    rules: Mapping[str, Rule],
    server: Server,
    candidates: Sequence[int],
    secret: SecretNoise | None,
) -> ClientDP | SummedDP | None:
    """Have the server average entries by their rules; return what does so with differential privacy, None if no entry has the rule dp.

    The noise of the whole run is solved for here.

    A simulation draws each client by a chance of its own and has noise from its seed. A deployment, which has a `secret`, draws a fixed
    number of sites. Where the noise is in a secure sum, the number is fixed in both, and not counted on: the server, against which the
    noise is, knows who was drawn.
    """
    names = tuple(name for name, rule in rules.items() if rule.dp)
    if not names or privacy is None:
        return None
    twice = [name for name in names if name in server.means]
    if twice:
        raise FedTailorError(
            f"privacy.{twice[0]} = dp and a robust mean contradict each other: what one client can change of a robust mean is not its clip."
        )
    low, high = server.protocol.join_range
    if low < high:
        raise FedTailorError(f"join = [{low:g}, {high:g}]: differential privacy needs one share, such as join=0.1.")
    if not candidates:
        raise FedTailorError("Differential privacy needs clients with samples; there are none.")
    summed = rules[names[0]].secure_sum
    kind: Participation = "poisson" if secret is None and not summed else "fixed"
    sampling = Sampling(kind, high, len(candidates), known=summed)
    amount = Amount.of(privacy.dp, sampling, server.protocol.rounds)
    if amount.accountant.delta > LARGE_DELTA:
        log.warning(
            "δ = %.2g with %d clients is a large chance of no protection, and makes ε look small: give privacy.delta=0.001, say.",
            amount.accountant.delta,
            len(candidates),
        )
    server.expected = sampling.expected / len(candidates)
    if summed:
        return SummedDP(names, amount)
    normal = NamedNoise(server.protocol.seed) if secret is None else secret
    dp = ClientDP(names, privacy.dp, amount, normal)
    server.means |= dict.fromkeys(names, dp.mean)
    return dp


def sampling_of(dp: ClientDP | SummedDP | None) -> Drawing:
    """Return how clients are drawn, as it is accounted."""
    if dp is None or isinstance(dp, SummedDP):
        return {}
    if isinstance(dp.normal, SecretNoise):
        return {"seed": dp.normal.sampling_seed()}
    return {"poisson": True}
