"""The engine of real federations: Flower carries each client's part of a call, as a message, to the node that holds the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtailor.engines.base import Engine, Outcome, Send
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.flower.transport import Transport
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload

log = logging.getLogger("fedtailor")


class Flower(Engine):
    """Asks sites for work. Their private states and personal models stay on their own disks.

    A site that is missing, late, fails, or sends an unusable reply is left out of the call, named in the log, and counted.
    """

    trusts_clients = False
    holds_states = False  # a message says its round, and a site starts from the state that it had before

    def __init__(
        self,
        transport: Transport,
        checks: ReplyChecks,
        names: Sequence[str],
        *,
        oldest: Callable[[], int],
        hellos: Mapping[int, Payload] | None = None,
        min_replies: int = 1,
        max_share: float = 1.0,
    ) -> None:
        """`oldest` returns the earliest round that this server may go back to.

        `hellos` are what the sites sent in an earlier run of the same federation. No client weighs more than `max_share` of a round.
        """
        super().__init__()
        self.run = str(transport.said.get("federation", ""))
        self.transport = transport
        self.checks = checks
        self.names = names
        self.oldest = oldest
        self.hellos = hellos
        self.min_replies = min_replies
        self.max_share = max_share
        self.step = 0  # closing steps so far
        self.counts = {"missing": 0, "rejected": 0}

    def call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        sent = {i: send(i) for i in sorted(clients)}
        outcomes, missing = self.transport.ask(work, round, self.plain(), sent)
        refused = {} if work.sums else self.checks.refused(work, outcomes, sent)  # a secure sum checks its own messages
        for i, reason in missing.items():
            log.warning("round %d, %s: no answer from %s: %s", round, work, self.names[i], reason)
        self.counts["missing"] += len(missing)
        for i, reason in refused.items():
            self.reject(i, f"round {round}, {work}: {reason}")
        return {i: outcome for i, outcome in outcomes.items() if i not in refused}

    def plain(self) -> dict[str, Any]:
        """Return what every message says beside its payload."""
        return {"step": self.step, "oldest": self.oldest()}

    def fit(self, round: int, clients: Iterable[int], send: Send, *, evaluate: bool) -> dict[int, Outcome]:
        clients, self.step = list(clients), 0
        outcomes = super().fit(round, clients, send, evaluate=evaluate)
        if len(outcomes) < min(self.min_replies, len(clients)):
            raise FedTailorError(
                f"Round {round}: {len(outcomes)} of {len(clients)} sites sent a usable reply, and min_replies is {self.min_replies}. "
                "The log says which were missing and why. Start the run again when they are back: it resumes from its last checkpoint."
            )
        weights = capped({i: outcome.samples for i, outcome in outcomes.items()}, self.max_share)
        return {i: replace(outcome, samples=weights[i]) for i, outcome in outcomes.items()}

    def finish(self, step: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        self.step = step
        return super().finish(step, clients, send)

    def hello(self, clients: Iterable[int]) -> dict[int, Payload]:
        """Collect every site's hello, which a method needs to start; sites that sent theirs in an earlier run are not asked again."""
        if self.hellos is None:
            clients = list(clients)
            heard = super().hello(clients)
            silent = [self.names[i] for i in clients if i not in heard]
            if silent:
                raise FedTailorError(
                    f"The federation cannot start: no usable reply came from {', '.join(silent)}. The log says why."
                )
            self.hellos = heard
        return dict(self.hellos)

    def name(self, client: int) -> str:
        return self.names[client]

    def reject(self, client: int, reason: str = "") -> None:
        if reason:
            log.warning("the answer of %s is left out: %s", self.names[client], reason)
        self.counts["rejected"] += 1

    def take_counts(self) -> dict[str, float]:
        counts, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return dict(counts)


def capped(samples: Mapping[int, int], share: float) -> dict[int, int]:
    """Cut the largest sample counts so that none exceeds this share of their sum; make all equal where that is impossible.

    >>> capped({0: 30, 1: 10, 2: 60_000}, 0.5)
    {0: 30, 1: 10, 2: 40}
    """
    sizes = sorted(samples.values(), reverse=True)
    for cut, largest in enumerate(sizes):  # the first `cut` are set to c = share · (cut · c + the rest)
        left = 1 - cut * share
        if left > 0 and largest <= (most := share * sum(sizes[cut:]) / left):
            return {i: min(n, int(most)) if cut else n for i, n in samples.items()}
    return dict.fromkeys(samples, min(sizes, default=0))
