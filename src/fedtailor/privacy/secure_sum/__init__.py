"""The sum of many clients' vectors, without the server seeing any of them (Bonawitz et al., 2017).

`ring` turns numbers into integers that can be added and masked, `primitives` names what is taken from the package `cryptography`, `shamir`
shares secrets among clients. A `client` and a `server` made of these exchange four messages in a round; docs/secure-sum.md has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtailor.errors import FedTailorError
from fedtailor.methods import Method
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.secure_sum.entries import Entries

if TYPE_CHECKING:
    from fedtailor.privacy.secure_sum.contributors import Contributors


def sums_of(privacy: Privacy | None, method: Method, run: str, seed: int | None = None) -> Contributors | None:
    """Return what takes part in secure sums at clients; None if the run has no entry with that rule.

    With a `seed`, keys come from named streams, which is for simulations; without one, from the operating system.
    """
    names = () if privacy is None else privacy.summed(method)
    if privacy is None or not names:
        return None
    both = [name for name in names if privacy.rules[name].dp]
    if both:
        raise FedTailorError(
            f"privacy.{both[0]} = {privacy.rules[both[0]]}: clients do not add their share of the noise yet, so dp and secure-sum cannot "
            "protect the same entry. Choose one."
        )
    from fedtailor.privacy.secure_sum.contributors import Contributors

    assert method.mean_by != "own weights"  # refused by the rules
    return Contributors(Entries(names, method.mean_by, privacy.sums.bound), run, privacy.sums.threshold, seed)
