"""Secure sums of a run: the messages of each round, over the run's engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedtailor.engines import Engine, Work
from fedtailor.engines.base import Send, nothing
from fedtailor.errors import FedTailorError
from fedtailor.experiment.guard import Fault
from fedtailor.experiment.ledger import Direction, Ledger
from fedtailor.experiment.notices import Notices
from fedtailor.experiment.sampling import Selection, counts
from fedtailor.learning import Payload, Reply, Server
from fedtailor.learning.mixing import Weights
from fedtailor.privacy.client_dp import common_base, tell_weights
from fedtailor.privacy.secure_sum.contributors import HEAVIEST, MOST, Contributors
from fedtailor.privacy.secure_sum.entries import PREFIX, WEIGHT
from fedtailor.privacy.secure_sum.server import Summation
from fedtailor.privacy.secure_sum.terms import FEWEST, SumLost, Terms

log = logging.getLogger("fedtailor")

SILENT = "it adds nothing to the secure sum: its values do not fit (privacy.bound), as its own log says"
ANSWERS = {Work.ADVERTISE: ("keys",), Work.SHARE: ("sealed", "digests", "seed"), Work.UNMASK: ("shares",)}
LOST = "sum_lost"  # in a round's record


class SecureRounds:
    """Has clients agree on masks before they train, adds their masked replies, and gives the server the means.

    A round whose sum is lost has no replies: the server keeps its state, and the run goes on.
    """

    def __init__(
        self,
        sums: Contributors,
        engine: Engine,
        server: Server,
        ledger: Ledger,
        notices: Notices,
        candidates: Sequence[int],
    ) -> None:
        """`candidates` are the clients that may be picked; refuse a run in which their sum could overflow, or be one client's alone."""
        self.sums = sums
        self.entries = entries = sums.entries
        self.engine = engine
        self.server = server
        self.ledger = ledger
        self.notices = notices
        self.candidates = candidates
        self.cheats: set[int] = set()  # clients whose shares did not fit once
        self.summation: Summation | None = None
        self.heaviest = 1
        self.means: dict[str, Tensor] = {}
        self.base: dict[str, Tensor] = {}  # what was sent in this round, where changes of it are summed
        self.told: set[str] = set()
        taken = [name for name in entries.names if name in server.means]
        if taken:
            raise FedTailorError(
                f"privacy.{taken[0]} = secure-sum contradicts another mean of the same entry, which looks at single replies. Leave one out."
            )
        server.means |= dict.fromkeys(entries.names, self.mean)
        fewest, most = counts(server.protocol, candidates)
        if fewest < FEWEST:
            raise FedTailorError(
                f"A secure sum needs at least {FEWEST} clients in a round, and this run picks {fewest}. Raise join or clients."
            )
        sums.form(self._heaviest(candidates), most)

    def begin(self, chosen: Selection, send: Send) -> tuple[Send, list[int]]:
        """Agree on masks; return what clients are sent now, and those of them that can take part."""
        round, picked = self.server.round, chosen.picked
        self.summation = Summation(Terms(self.engine.run, round, self.sums.threshold))
        self.means = {}
        if self.sums.noise is not None:
            self.base = common_base(self.entries.names, {i: send(i) for i in picked}, self.server.state)
        self.heaviest = self._heaviest(picked)
        try:
            offer = self.summation.take_keys(
                self._call(Work.ADVERTISE, [i for i in picked if i not in self.cheats], nothing)
            )
            offer[HEAVIEST] = torch.tensor([self.heaviest])
            self.summation.take_shares(self._call(Work.SHARE, list(self.summation.keys), lambda _: offer))
        except SumLost as problem:
            self._lose(problem)
            return send, []
        replying = [i for i in chosen.replying if i in self.summation.sealed]
        return lambda i: {**send(i), **self._inbox(i)}, replying

    @property
    def expected(self) -> float | None:
        """The number of participants that sums of changes are divided by, whoever replied; None without differential privacy."""
        return None if self.sums.noise is None else float(counts(self.server.protocol, self.candidates)[1])

    def _heaviest(self, clients: Sequence[int]) -> int:
        return max((self.entries.weight(self.server.sizes[i], MOST) for i in clients), default=1)

    def _inbox(self, client: int) -> Payload:
        """Return what a client is sent beside its method's payload."""
        assert self.summation is not None
        inbox = self.summation.inbox(client)
        self._enter("down", {client: inbox})
        return {f"{PREFIX}{name}": tensor for name, tensor in inbox.items()}

    def end(self, replies: Sequence[Reply]) -> list[Reply]:
        """Make the means of the replies; return those that are in them, without their masked entries."""
        if self.summation is None:
            return []
        try:
            self.means = self._means(self.summation, replies)
        except SumLost as problem:
            self._lose(problem)
            return []
        self._leave_out(self.summation.refused)
        hidden = (*self.entries.names, WEIGHT)
        used = [reply for reply in replies if reply.client in self.summation.masked]
        return [replace(r, payload={k: t for k, t in r.payload.items() if k not in hidden}) for r in used]

    def mean(self, server: Server, replies: Sequence[Reply], name: str, by: Weights) -> Tensor:
        """Return the mean of an entry over all clients in the sum, whichever replies are left of them."""
        if self.sums.noise is not None:
            tell_weights(self.told, name, by)
        elif by != self.entries.by:
            raise TypeError(f"the mean of '{name}' is by {by}, but the method declares mean_by = {self.entries.by!r}")
        return self.means[name]

    def _means(self, summation: Summation, replies: Sequence[Reply]) -> dict[str, Tensor]:
        sent = {reply.client: reply.payload for reply in replies if WEIGHT in reply.payload}
        summation.refused |= {reply.client: SILENT for reply in replies if reply.client not in sent}
        shapes = self.entries.shapes(list(sent.values()), self.server.state)
        length = 1 + sum(shape.numel() for shape in shapes.values())
        request = summation.take_masked({i: self.entries.vector(up, shapes) for i, up in sent.items()}, length)
        total = summation.unmask(self._call(Work.UNMASK, list(summation.masked), lambda _: request))
        form = self.sums.form(self.heaviest, len(summation.keys))
        means = self.entries.means(total, shapes, form, self.expected)
        if means is None:
            raise SumLost(f"The secure sum of round {summation.terms.round} is lost: its weights do not add up.")
        like = torch.empty(0, dtype=self.server.protocol.torch_dtype, device=self.server.protocol.device)
        return {n: (mean + self.base[n].cpu() if n in self.base else mean).to(like) for n, mean in means.items()}

    def _call(self, work: Work, clients: Sequence[int], send: Send) -> dict[int, Payload]:
        sent = {i: send(i) for i in clients}
        outcomes = self.engine.call(work, self.server.round, clients, sent.__getitem__)
        messages = {i: {name: o.up[name] for name in ANSWERS[work] if name in o.up} for i, o in outcomes.items()}
        self._enter("down", sent)
        self._enter("up", messages)
        return messages

    def _enter(self, direction: Direction, payloads: dict[int, Payload]) -> None:
        named = {i: {f"{PREFIX}{name}": t for name, t in payload.items()} for i, payload in payloads.items()}
        self.ledger.enter(self.server.round, direction, named)

    def _lose(self, problem: SumLost) -> None:
        assert self.summation is not None
        log.warning("%s The server keeps its state, and the run goes on.", problem)
        self.server.log(**{LOST: 1})
        self.cheats |= set(problem.cheats)
        self._leave_out(self.summation.refused)
        self.summation = None

    def _leave_out(self, refused: dict[int, str]) -> None:
        for client in refused:
            self.engine.reject(client)
        self.notices.left_out(self.server.round, {client: Fault(reason) for client, reason in refused.items()})
