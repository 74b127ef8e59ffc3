"""A federation, a method and a protocol, stepped round by round."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from torch import Tensor, nn

from fedtailor.attacks import Attack
from fedtailor.data.federation import Federation
from fedtailor.engines import Engine, Outcome, Work
from fedtailor.engines.base import Send, save_module
from fedtailor.errors import FedTailorError
from fedtailor.experiment.aggregation import Aggregation
from fedtailor.experiment.by_client import ByClient, Traffic
from fedtailor.experiment.callbacks import Callback, Record, calling
from fedtailor.experiment.clock import Clock
from fedtailor.experiment.evaluation import patience_is_over, summarize_federation, with_best
from fedtailor.experiment.headline import last_mean
from fedtailor.experiment.hostile import Given, attacked
from fedtailor.experiment.ledger import Ledger
from fedtailor.experiment.notices import Notices
from fedtailor.experiment.options import ProtocolOptions, keywords_of
from fedtailor.experiment.protection import sampling_of
from fedtailor.experiment.sample_budgets import most_spent
from fedtailor.experiment.sampling import select
from fedtailor.experiment.setup import Safeguards, set_up
from fedtailor.files import writing
from fedtailor.learning import Payload, Protocol, Reply, State
from fedtailor.learning.cores import torch_threads
from fedtailor.learning.scoring import Score
from fedtailor.methods import Method, methods
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.fitting import fitting_net
from fedtailor.privacy.client_dp import ClientDP
from fedtailor.privacy.noise import SecretNoise
from fedtailor.privacy.rules import Privacy
from fedtailor.registry import build, named
from fedtailor.robust import RobustMean

V = TypeVar("V")


class Simulation:
    """Runs a method on a federation; `for record in simulation` yields the metrics of each round.

    Everything a researcher wants to look at between rounds is open: `server.state`, `state(client)`, `traffic.down` and `traffic.up`
    (the last round's payloads), `scores`, `features(client)`, `ledger`, `metrics`. A vector becomes tensors by name with
    `server.net().body.named(vector)`.
    """

    @keywords_of(Protocol)
    def __init__(
        self,
        federation: Federation,
        method: str | Method = "fedrep",
        net: str | Architecture | nn.Module | None = None,
        *,
        head: str | None = None,
        engine: str | Engine = "auto",
        workers: int = 0,
        ray_address: str = "",
        protocol: Protocol | None = None,
        privacy: Privacy | Mapping[str, Any] | None = None,
        robust: RobustMean | Given | None = None,
        attack: Attack | Given | None = None,
        secret: SecretNoise | None = None,
        **settings: Unpack[ProtocolOptions],
    ) -> None:
        """`settings` are the protocol's options, such as rounds=20, lr=0.01, join=0.5, seed=1.

        `net` is a name, an architecture or any module (default: a net that fits the samples); `head` names its head submodule.

        `engine` is inline, processes or ray (with so many `workers`; 0 means one for each core; Ray is started here, or that at
        `ray_address` is joined) or auto; all give the same numbers. To stop in a debugger inside a method, take inline. The engine
        stacked trains many clients with small nets as one, several times as fast, with numbers that are equal up to rounding. An engine
        that is made already is taken as it is.

        `privacy` has a rule for each entry that leaves a client, such as {"body": "dp", "epsilon": 2}; a deployment has a `secret`.
        `robust` takes the place of means ("median", {"name": "trimmed", "share": 0.3}), and `attack` makes a share of the clients
        hostile ({"name": "scaled", "share": 0.2}); scores are those of the others (see docs/robust.md).
        """
        if protocol is not None and settings:
            raise FedTailorError(f"Give either a protocol or its options ({', '.join(settings)}), not both.")
        net = fitting_net(federation.task) if net is None else net
        self.protocol = protocol or build(Protocol, settings)
        self.federation = federation = federation.with_validation(self.protocol.validation, self.protocol.seed)
        self.method = method if isinstance(method, Method) else methods.build(method, {})
        self.privacy = Privacy.read(privacy)
        safeguards = Safeguards(self.privacy, robust, attack, secret)
        setup = set_up(federation, self.method, net, head, self.protocol, safeguards, engine, workers, ray_address)
        self.engine, self.worker, self.server = setup.engine, setup.worker, setup.server
        self.candidates = setup.candidates
        self.attackers = setup.attackers
        self.everyone = list(range(len(federation.clients)))
        self.path: Path | None = None  # its run folder, if it has one
        self.round = 0
        self.last_round = self.protocol.rounds
        self.closed = 0
        self.metrics: list[Record] = []
        self.scores: ByClient[Score] = self._by_client({})
        self.outcomes: dict[int, Outcome] = {}
        self.traffic = self._no_traffic()
        self.ledger = Ledger()
        self.notices = Notices(self.engine.name)
        self.dp = setup.dp
        few = max(federation.classes, len(self.everyone))
        central = self.dp if isinstance(self.dp, ClientDP) else None
        self.aggregation = Aggregation(self.method, self.server, self.engine, self.notices, few, central)
        self.sums = setup.secure_rounds(self.ledger, self.notices)
        with torch_threads(self.protocol.threads):
            self.method.start(self.server, self._hellos())

    # -- stepping ---------------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.rounds_done and self.closed >= self.method.closing_steps

    @property
    def rounds_done(self) -> bool:
        """Whether no round is left: all are done, or `patience` of them brought nothing better on the validation samples.

        That follows from the records alone, so that a resumed run stops where an uninterrupted one does.
        """
        if self.dp is not None and self.round < self.last_round and self.dp.is_spent(self.round):
            self.notices.spent(self.round, self.protocol.rounds)
            return True
        patience, metric = self.protocol.patience, self.worker.metrics[0]
        return self.round >= self.last_round or patience_is_over(patience, self.metrics, metric)

    def __iter__(self) -> Iterator[Record]:
        while not self.finished:
            yield self.step()

    def run(self, *callbacks: Callback | Callable[[Record], object]) -> Self:
        """Run all rounds that are left, and the closing steps; callbacks may be plain functions of a round's record."""
        with calling(callbacks, self) as after_round:
            for record in self:
                after_round(record)
        return self

    def stop(self) -> None:
        """Make the last round the one that was just run; only closing steps follow."""
        self.last_round = self.round

    def step(self) -> Record:
        """Run one round or, after the last round, one closing step."""
        with torch_threads(self.protocol.threads):
            record = self._closing_step() if self.rounds_done else self._round()
        self.metrics.append(record)
        if self.finished:
            self.notices.close()
        return record

    def _round(self) -> Record:
        self.round += 1
        self.server.begin(self.round)
        self.traffic = self._no_traffic()
        self.ledger.open_round()
        due = self.round % self.protocol.eval_every == 0 or self.round == self.protocol.rounds
        chosen = select(self.protocol, self.candidates, self.round, **sampling_of(self.dp))
        clock = Clock()

        self.traffic.down = self._by_client({i: self._send(i) for i in chosen.picked})
        send: Send = self.traffic.down.__getitem__
        replying = chosen.replying
        if self.sums is not None:
            send, replying = self.sums.begin(chosen, send)
        clock.lap("communication")
        self.outcomes = self.engine.fit(self.round, replying, send, evaluate=due and self._after_train)
        clock.lap("training")
        if self.attackers:
            self.outcomes = attacked(self.attackers, self.round, self.traffic.down, self.outcomes)
        self.traffic.up = self._by_client({i: outcome.up for i, outcome in self.outcomes.items()})
        replies = [Reply(i, outcome.samples, outcome.up) for i, outcome in self.outcomes.items()]
        if self.sums is not None:
            replies = self.sums.end(replies)
        used = {reply.client for reply in self.aggregation.aggregate(replies, self.traffic.down)}
        self.outcomes = {i: outcome for i, outcome in self.outcomes.items() if i in used}
        self._enter_in_ledger()
        clock.lap("communication")
        self._evaluate(due)
        clock.lap("evaluation")

        losses = [o.loss for o in self._benign(self.outcomes).values()]
        return {
            "round": self.round,
            "phase": "round",
            **self._quality(due),
            "train_loss": sum(losses) / len(losses) if losses else float("nan"),
            "picked": len(chosen.picked),
            "replied": len(self.outcomes),
            "bytes_up": self.ledger.bytes("up"),
            "bytes_down": self.ledger.bytes("down"),
            **clock.seconds,
            **self.engine.take_counts(),
            **self._diverged(self.server.trouble),
            **most_spent(self.metrics, self.outcomes),
            **({} if self.dp is None else self.dp.record(self.server)),
            **self.server.logged,
        }

    def _closing_step(self) -> Record:
        self.closed += 1
        clock = Clock()
        self.traffic = self._no_traffic()
        if self.closed == 1:
            self.traffic.down = self._by_client({i: self._send(i) for i in self.everyone})
        self.ledger.open_round()
        # As a round of its own, so that a run that goes back to its last round knows what to drop.
        self.ledger.enter(self.round + 1, "down", self.traffic.down)
        self.outcomes = self.engine.finish(self.closed, self.candidates, self._send)
        clock.lap("training")
        due = self.finished or self.protocol.eval_closing == "each"
        if due:
            self.scores = self._benign(self.engine.evaluate(self.round, self.everyone, self._send, sync=False))
        clock.lap("evaluation")
        return {
            "round": self.round,
            "phase": "finish",
            "step": self.closed,
            **self._quality(due),
            "bytes_up": 0,
            "bytes_down": self.ledger.bytes("down"),
            **clock.seconds,
            **self._diverged(Counter()),
            **most_spent(self.metrics, self.outcomes),
        }

    def _diverged(self, server: Counter[str]) -> Record:
        """Log where training diverged, and count those clients for the record."""
        clients, self.engine.troubles = self.engine.troubles, {}
        self.notices.diverged(self.round, clients, server, self.protocol.lr)
        return {"diverged": len(clients)} if clients else {}

    def _evaluate(self, due: bool) -> None:
        sync = self.method.syncs_everyone
        if due:
            trained = {i: o.score for i, o in self.outcomes.items() if o.score is not None}
            others = [i for i in self.everyone if i not in trained]
            scores = self.engine.evaluate(self.round, others, self._send, sync=sync)
            self.scores = self._benign(dict(sorted({**scores, **trained}.items())))
            if sync:  # those scored before the answer take it in all the same
                self.engine.sync(self.round, trained, self._send)
        elif sync:
            self.engine.sync(self.round, self.everyone, self._send)

    def _quality(self, due: bool) -> Record:
        """The metrics of this evaluation, and the best one so far (of rounds and closing steps apart) by the metric that selects."""
        phase = "round" if self.closed == 0 else "finish"
        metric = self.worker.metrics[0]
        validated = self.protocol.validation > 0
        scores = self.scores if due else {}
        found = summarize_federation(scores, self.worker.metrics, self.federation, validated=validated)
        found |= self.attackers.summary(scores) if self.attackers else {}
        seen = [r for r in self.metrics if r["phase"] == phase]
        return with_best(found if due else dict.fromkeys(found), seen, metric, self.round, validated=validated)

    def _benign(self, entries: Mapping[int, V]) -> ByClient[V]:
        """Return the entries of all clients but the attackers, whose scores are nobody's concern."""
        hostile = self.attackers.clients if self.attackers else frozenset()
        return self._by_client({i: entry for i, entry in entries.items() if i not in hostile})

    # -- what passes between the participants ----------------------------------------------------------------------------------------

    @property
    def _after_train(self) -> bool:
        return self.method.scored_after_training(self.protocol)

    def _hellos(self) -> dict[int, Payload]:
        if type(self.method).hello is Method.hello:
            return {}
        hellos = self.engine.hello(self.everyone)
        self.ledger.enter(0, "up", hellos)
        return hellos

    def _send(self, client: int) -> Payload:
        payload = self.method.send(self.server, client)
        undeclared = set(payload) - set(self.method.down)
        if undeclared:
            raise TypeError(
                f"{self.method.name} sends {sorted(undeclared)}, but declares only down = {self.method.down}"
            )
        return payload

    def _enter_in_ledger(self) -> None:
        """Enter the round's bytes. Where everyone is synced after each round, that is the delivery, and it is entered once."""
        self.ledger.enter(self.round, "up", self.traffic.up)
        if not self.method.syncs_everyone or self.round == 1:
            self.ledger.enter(self.round, "down", self.traffic.down)
        if self.method.syncs_everyone:
            self.ledger.enter(self.round, "down", {i: self._send(i) for i in self.everyone})

    def _by_client(self, entries: Mapping[int, V]) -> ByClient[V]:
        return ByClient(entries, self.federation.number)

    def _no_traffic(self) -> Traffic:
        return Traffic(self._by_client({}), self._by_client({}))

    # -- looking at it ----------------------------------------------------------------------------------------------------------

    def state(self, client: int | str) -> State:
        """Return a client's private state; the client is given by number or name."""
        if not self.engine.holds_states:
            raise FedTailorError("A site's private state stays on its own disk, in the folder state/ of the site.")
        return self.engine.state(self.federation.number(client))

    def personal(self, client: int | str) -> nn.Module:
        """Return a client's personal model as it was last scored, as an independent plain module.

        The client is given by number or name.
        """
        if not self.engine.holds_states:
            raise FedTailorError("A site's personal model stays on its own disk, in the folder models/ of the site.")
        number = self.federation.number(client)
        return self.worker.personal(number, self.round, self._scored_with(number), self._kept(number))

    def features(self, client: int | str, part: str = "test") -> tuple[Tensor, Tensor]:
        """Return features and labels of a client's train, validation or test samples, in order, on the CPU.

        Features are what the head of its personal model sees, as that was last scored. The client is given by number or name.
        """
        if not self.engine.holds_states or not self.federation.at_hand:
            raise FedTailorError(
                "A site's samples and its personal model stay at the site, so there are no features of them here."
            )
        number = self.federation.number(client)
        with torch_threads(self.protocol.threads):
            return self.worker.features(number, self.round, self._scored_with(number), self._kept(number), part)

    def _kept(self, client: int) -> State | None:
        """Return a client's private state if it has worked, wherever it is kept."""
        return self.engine.state(client) if client in self.engine.known else None

    @property
    def scored_with_replies(self) -> bool:
        """Whether models are scored before the server's answer, so that those of the last round are made of its replies."""
        return self._after_train and not self.method.closing_steps and self.engine.holds_states

    def _scored_with(self, client: int) -> Payload:
        """Return the payload that the personal model was scored with: what the server sends now, or the client's own reply."""
        if self.scored_with_replies and client in self.outcomes:
            payload = {**self.traffic.down[client], **self.traffic.up[client]}
            return payload if self.sums is None else self.worker.unmasked(payload, self._kept(client) or {})
        return self._send(client)

    def save_models(self, folder: str | PathLike[str]) -> None:
        """Save every client's personal model as it is now, in this folder or, where clients are sites, on each site's own disk."""
        if not self.engine.holds_states:
            self.engine.call(Work.SAVE_MODEL, self.round, self.everyone, self._send)
            return
        folder = Path(folder)
        with writing(folder):
            folder.mkdir(exist_ok=True)
        for i in self.everyone:
            save_module(self.personal(i), folder / f"client-{i:05d}.safetensors")

    def restore(self, round: int, server: State, clients: Mapping[int, State], metrics: list[Record]) -> None:
        """Go back to the end of a round, from a checkpoint's content."""
        self.round, self.closed = round, 0
        self.server.state = dict(server)
        if self.engine.holds_states:
            self.engine.restore(clients)
        self.metrics = [r for r in metrics if r["round"] <= round and r["phase"] == "round"]

    def close(self) -> None:
        """Stop the processes that the engine started; otherwise they end with the simulation."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Simulation: {named(self.method)} on {len(self.everyone):,} clients, "
            f"round {self.round} of {self.last_round}{last_mean(self.metrics)}\n  {self.protocol!r}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"
