"""The sum of many clients' vectors, without the server seeing any of them (Bonawitz et al., 2017).

`ring` turns numbers into integers that can be added and masked, `primitives` names what is taken from the package `cryptography`, `shamir`
shares secrets among clients. A `client` and a `server` made of these exchange four messages in a round; docs/secure-sum.md has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtailor.methods import Method
from fedtailor.privacy.noise_shares import NoiseShares, ShareDraws
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.secure_sum.entries import Entries

if TYPE_CHECKING:
    from fedtailor.privacy.secure_sum.contributors import Contributors


def sums_of(
    privacy: Privacy | None, method: Method, run: str, rounds: int, draws: ShareDraws, seed: int | None = None
) -> Contributors | None:
    """Return what takes part in secure sums at clients; None if the run has no entry with that rule.

    With a `seed`, keys come from named streams, which is for simulations; without one, from the operating system. Where the entries have
    differential privacy as well, clients take their shares of the noise of so many rounds from `draws`.
    """
    names = () if privacy is None else privacy.summed(method)
    if privacy is None or not names:
        return None
    from fedtailor.privacy.secure_sum.contributors import Contributors

    assert method.mean_by != "own weights"  # refused by the rules
    noise = NoiseShares(privacy.dp, rounds, draws) if privacy.rules[names[0]].dp else None
    by = method.mean_by if noise is None else "clients"  # weights that depend on data tell of it
    return Contributors(Entries(names, by, privacy.sums.bound), run, privacy.sums.threshold, seed, noise)
