"""Hostile clients: who attacks in a simulation, and which robust means the server has against them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedtailor.attacks import Attack, Attackers, attacks
from fedtailor.engines import Engine, Outcome
from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload, Protocol, Server
from fedtailor.methods import Method
from fedtailor.privacy.robust_rules import robust_rules, unprotected
from fedtailor.privacy.rules import Rule
from fedtailor.robust import RobustMean, robust_means

log = logging.getLogger("fedtailor")

Given = str | Mapping[str, Any]  # a name, or a table with a name and options


def attackers_of(
    given: Attack | Given | None, engine: str | Engine, candidates: list[int], seed: int
) -> Attackers | None:
    """Draw the attackers of a simulation; None if it has no attack."""
    attack = attacks.optional(given)
    if attack is None:
        return None
    if not isinstance(engine, str) and not engine.trusts_clients:
        raise FedTailorError(f"attack = {attack.name} is for simulations only: the clients of this run are real sites.")
    return Attackers.drawn(attack, candidates, seed)


def attacked(
    attackers: Attackers, round: int, sent: Mapping[int, Payload], outcomes: Mapping[int, Outcome]
) -> dict[int, Outcome]:
    """Return the outcomes of a round with what attackers send in place of what they trained."""
    return {i: replace(o, up=attackers.reply(round, i, sent[i], o.up)) for i, o in outcomes.items()}


def set_robust_means(
    server: Server, method: Method, rules: Mapping[str, Rule], given: RobustMean | Given | None, clients: int
) -> None:
    """Give the server its robust means, and say what hostile clients can still do."""
    means = robust_rules(method, rules, robust_means.optional(given))
    for rule in means.values():
        rule.check_replies(_fewest(server.protocol, clients))
    server.means |= {name: rule.mean for name, rule in means.items()}
    if means and (open_to := unprotected(method, means)):
        log.warning(
            "%s does not only average %s: a hostile client can still move what the server makes of %s, within the guard's bounds.",
            method.name,
            ", ".join(open_to),
            "it" if len(open_to) == 1 else "them",
        )


def _fewest(protocol: Protocol, clients: int) -> int:
    """The smallest number of clients that a round picks."""
    return max(1, math.floor(protocol.join_range[0] * clients + 1e-9))
