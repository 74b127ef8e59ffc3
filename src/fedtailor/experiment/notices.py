"""Warnings during a run: each is logged once, with a count at the end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fedtailor.experiment.guard import Fault
from fedtailor.learning.descent import EXPLODED, GROWTH, SKIPPED, UNDONE

log = logging.getLogger("fedtailor")

SHOWN = 5  # clients that one line names


class Notices:
    """Logs the first time that a reply is left out or training diverges; `close` logs the totals."""

    def __init__(self, name: Callable[[int], str]) -> None:
        """`name` returns a client's name for the log."""
        self.name = name
        self.logged: set[tuple[int, str]] = set()
        self.left: Counter[int] = Counter()  # client -> rounds in which its reply was left out
        self.rounds = 0  # and closing steps in which training diverged somewhere
        self.trouble: Counter[str] = Counter()

    def left_out(self, round: int, faults: Mapping[int, Fault]) -> None:
        """Log whose replies are left out in this round, unless it was logged for the same reason before."""
        self.left.update(faults.keys())
        fresh: dict[str, list[int]] = {}
        for client, fault in sorted(faults.items()):
            if (client, fault.reason) not in self.logged:
                fresh.setdefault(fault.reason, []).append(client)
                self.logged.add((client, fault.reason))
        for clients in fresh.values():
            worst = max((faults[i] for i in clients), key=lambda fault: fault.extent)
            what = "the answer of %s is left out: " if len(clients) == 1 else "the answers of %s are left out: "
            log.warning(what + "round %d: %s", self._names(clients), round, worst)

    def diverged(self, round: int, clients: Mapping[int, Counter[str]], server: Counter[str], lr: float) -> None:
        """Log the first round in which training diverged at some clients or at the server."""
        if not clients and not server:
            return
        self.rounds += 1
        total = sum(clients.values(), Counter(server))
        self.trouble += total
        if self.rounds == 1:
            names = self._names(sorted(clients))
            places = [
                f"{len(clients)} clients ({names})" if len(clients) > 1 else names,
                "the server" if server else "",
            ]
            log.warning(
                "round %d: training diverged at %s: %s. Lower lr (now %g), or look at the data there.",
                round,
                " and ".join(filter(None, places)),
                _counted(total),
                lr,
            )

    def spent(self, round: int, rounds: int) -> None:
        """Log once that the run ends early because its privacy budget is spent."""
        if (-1, "spent") not in self.logged:
            self.logged.add((-1, "spent"))
            log.warning("The rounds end after %d of %d: another would spend more than privacy.epsilon.", round, rounds)

    def close(self) -> None:
        """Log totals of what happened more than once."""
        again = [f"{self.name(i)} in {n:,} rounds" for i, n in self.left.most_common() if n > 1]
        if again:
            log.warning("Answers left out in all: of %s.", _listed(again))
        if self.rounds > 1:
            log.warning(
                "Training diverged in %d rounds or closing steps: %s in all.", self.rounds, _counted(self.trouble)
            )
        self.left, self.rounds, self.trouble = Counter(), 0, Counter()

    def _names(self, clients: Sequence[int]) -> str:
        return _listed([self.name(i) for i in clients])


def _listed(words: Sequence[str]) -> str:
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _counted(trouble: Mapping[str, int]) -> str:
    words = {
        SKIPPED: ("step", "left out because the loss was not finite"),
        UNDONE: ("phase", "undone because weights were not finite"),
        EXPLODED: ("phase", f"in which weights grew more than {GROWTH:,.0f}-fold"),
    }
    counts = [(trouble.get(name, 0), *text) for name, text in words.items()]
    return ", ".join(f"{n:,} {unit}{'s' if n > 1 else ''} {what}" for n, unit, what in counts if n)
