"""A federation, a method and a protocol, stepped round by round."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from fedtailor.data.federation import Federation
from fedtailor.engines import Engine, Outcome, start_engine
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.aggregation import Aggregation
from fedtailor.experiment.evaluation import best_record, summarize
from fedtailor.experiment.ledger import Ledger
from fedtailor.experiment.notices import Notices
from fedtailor.experiment.sampling import select
from fedtailor.learning import Payload, Protocol, Reply, Server, State
from fedtailor.learning.participants import Modules
from fedtailor.learning.samples import Samples
from fedtailor.learning.scoring import Score
from fedtailor.methods import Method, methods
from fedtailor.nets.architecture import Architecture
from fedtailor.registry import build

Record = dict[str, Any]  # one line of metrics.jsonl


@dataclass
class Traffic:
    """The payloads of one round, by client: what went down, what came up."""

    down: dict[int, Payload] = field(default_factory=dict)
    up: dict[int, Payload] = field(default_factory=dict)


class Simulation:
    """Runs a method on a federation; `for record in simulation` yields the metrics of each round.

    Everything a researcher wants to look at between rounds is open: `server.state`, `state(client)`, `traffic.down` and `traffic.up`
    (the last round's payloads), `scores`, `ledger`, `metrics`. A vector becomes tensors by name with `server.net().body.named(vector)`.
    """

    def __init__(
        self,
        federation: Federation,
        method: str | Method = "fedavg",
        net: str | Architecture | nn.Module = "cnn",
        *,
        head: str | None = None,
        engine: str | Engine = "auto",
        workers: int = 0,
        ray_address: str = "",
        protocol: Protocol | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are the protocol's options, such as rounds=20, lr=0.01, join=0.5, seed=1; `head` names the net's head submodule.

        `engine` is inline, processes or ray (with so many `workers`; 0 means one for each core; Ray is started here, or that at
        `ray_address` is joined) or auto; all give the same numbers. To stop in a debugger inside a method, take inline.
        An engine that is made already is taken as it is.
        """
        if protocol is not None and settings:
            raise FedTailorError(f"Give either a protocol or its options ({', '.join(settings)}), not both.")
        self.protocol = protocol or build(Protocol, settings)
        self.federation = federation = federation.with_validation(self.protocol.validation, self.protocol.seed)
        self.method = method if isinstance(method, Method) else methods.build(method, {})
        worker = Worker(federation, self.method, net, head, self.protocol)
        if isinstance(engine, str):
            engine = start_engine(engine, worker, workers, ray_address)
        self.engine = engine
        self.worker = worker
        sizes = [len(c.train) for c in federation.clients]
        modules = Modules(net, head, federation.task, self.protocol, worker.modules.carry_buffers)
        proxy = Samples(federation.server, federation, self.protocol, ready=worker.ready)
        self.server = Server(modules, proxy, self.protocol, sizes)
        self.candidates = [i for i, size in enumerate(sizes) if size]
        self.everyone = list(range(len(sizes)))
        self.round = 0
        self.closed = 0
        self.metrics: list[Record] = []
        self.scores: dict[int, Score] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.traffic = Traffic()
        self.ledger = Ledger()
        self.notices = Notices(engine.name)
        few = max(federation.classes, len(sizes))
        self.aggregation = Aggregation(self.method, self.server, engine, self.notices, few)
        with self._threads():
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
        if self.round >= self.protocol.rounds:
            return True
        rounds = [r for r in self.metrics if r["phase"] == "round"]
        if not self.protocol.patience or not rounds or rounds[-1]["loss"] is None:
            return False
        best = best_record(rounds, self.worker.metrics[0], validated=True)
        return self.round - best.get("round", 0) >= self.protocol.patience

    def __iter__(self) -> Iterator[Record]:
        while not self.finished:
            yield self.step()

    def run(self, watch: Callable[[Record], None] | None = None) -> Self:
        """All rounds that are left, and the closing steps."""
        for record in self:
            if watch is not None:
                watch(record)
        return self

    def step(self) -> Record:
        """One round or, after the last round, one closing step."""
        with self._threads():
            record = self._closing_step() if self.rounds_done else self._round()
        self.metrics.append(record)
        if self.finished:
            self.notices.close()
        return record

    def _round(self) -> Record:
        self.round += 1
        self.server.begin(self.round)
        self.traffic = Traffic()
        self.ledger.open_round()
        due = self.round % self.protocol.eval_every == 0 or self.round == self.protocol.rounds
        chosen = select(self.protocol, self.candidates, self.round)
        clock = Clock()

        self.traffic.down = {i: self._send(i) for i in chosen.picked}
        clock.lap("communication")
        self.outcomes = self.engine.fit(
            self.round, chosen.replying, self.traffic.down.__getitem__, evaluate=due and self._after_train
        )
        clock.lap("training")
        self.traffic.up = {i: outcome.up for i, outcome in self.outcomes.items()}
        replies = [Reply(i, outcome.samples, outcome.up) for i, outcome in self.outcomes.items()]
        used = {reply.client for reply in self.aggregation.aggregate(replies, self.traffic.down)}
        self.outcomes = {i: outcome for i, outcome in self.outcomes.items() if i in used}
        self._enter_in_ledger()
        clock.lap("communication")
        self._evaluate(due)
        clock.lap("evaluation")

        losses = [o.loss for o in self.outcomes.values()]
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
            **self.engine.noted(),
            **self._diverged(self.server.trouble),
            **self.server.logged,
        }

    def _closing_step(self) -> Record:
        self.closed += 1
        clock = Clock()
        self.traffic = Traffic()
        if self.closed == 1:
            self.traffic.down = {i: self._send(i) for i in self.everyone}
        self.ledger.open_round()
        # As a round of its own, so that a run that goes back to the end of its rounds can tell what to forget.
        self.ledger.enter(self.round + 1, "down", self.traffic.down)
        self.engine.finish(self.closed, self.candidates, self._send)
        clock.lap("training")
        self.scores = self.engine.evaluate(self.round, self.everyone, self._send, sync=False)
        clock.lap("evaluation")
        return {
            "round": self.round,
            "phase": "finish",
            "step": self.closed,
            **self._quality(True),
            "bytes_up": 0,
            "bytes_down": self.ledger.bytes("down"),
            **clock.seconds,
            **self._diverged(Counter()),
        }

    def _diverged(self, server: Counter[str]) -> Record:
        """Tell where training diverged; a record counts the clients if there are any."""
        clients, self.engine.troubles = self.engine.troubles, {}
        self.notices.diverged(self.round, clients, server, self.protocol.lr)
        return {"diverged": len(clients)} if clients else {}

    def _evaluate(self, due: bool) -> None:
        sync = self.method.syncs_everyone
        if due:
            trained = {i: o.score for i, o in self.outcomes.items() if o.score is not None}
            others = [i for i in self.everyone if i not in trained]
            scores = self.engine.evaluate(self.round, others, self._send, sync=sync)
            self.scores = dict(sorted({**scores, **trained}.items()))
            if sync:  # those scored before the answer take it in all the same
                self.engine.sync(self.round, trained, self._send)
        elif sync:
            self.engine.sync(self.round, self.everyone, self._send)

    def _quality(self, due: bool) -> Record:
        """The metrics of this evaluation, and the best one so far (of rounds and closing steps apart) by the metric that selects."""
        phase = "round" if self.closed == 0 else "finish"
        metric = self.worker.metrics[0]
        now: Record = self._summary() if due else dict.fromkeys(self._summary({}))
        seen = [r for r in self.metrics if r["phase"] == phase] + [now]
        best = best_record(seen, metric, validated=self.protocol.validation > 0)
        return {
            **now,
            **({} if metric.name == "accuracy" else {"select_by": metric.name}),
            f"best_{metric.name}": best.get(metric.name),
            f"best_{metric.name}_mean": best.get(f"{metric.name}_mean"),
            "best_round": best.get("round", self.round),
        }

    def _summary(self, scores: Mapping[int, Score] | None = None) -> Record:
        scores, clients = self.scores if scores is None else scores, self.federation.clients
        metrics, task = self.worker.metrics, self.federation.task
        found = summarize(scores, metrics, task, {i: clients[i].test.y for i in scores})
        if self.protocol.validation:
            held = {i: s.validation for i, s in scores.items() if s.validation is not None}
            labels = {i: v.y for i in held if (v := clients[i].validation) is not None}
            found |= {f"validation_{k}": v for k, v in summarize(held, metrics, task, labels).items()}
        return found

    # -- what passes between the parties ----------------------------------------------------------------------------------------

    @property
    def _after_train(self) -> bool:
        point = self.method.eval_point if self.protocol.eval_point == "method" else self.protocol.eval_point
        return point == "after_train"

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
        """Weigh the round. Where everyone is synced after each round, that is the delivery, and it is weighed once."""
        self.ledger.enter(self.round, "up", self.traffic.up)
        if not self.method.syncs_everyone or self.round == 1:
            self.ledger.enter(self.round, "down", self.traffic.down)
        if self.method.syncs_everyone:
            self.ledger.enter(self.round, "down", {i: self._send(i) for i in self.everyone})

    # -- looking at it ----------------------------------------------------------------------------------------------------------

    def state(self, client: int | str) -> State:
        """A client's private state; the client is given by number or name."""
        return self.engine.state(self.federation.number(client))

    def personal(self, client: int | str) -> nn.Module:
        """A client's personal model now, as an independent plain module; the client is given by number or name."""
        number = self.federation.number(client)
        return self.engine.personal(self.round, number, self._send(number))

    def save_models(self, folder: str | PathLike[str]) -> None:
        """Save every client's personal model as it is now."""
        self.engine.save_models(self.round, self.everyone, self._send, Path(folder))

    def restore(self, round: int, server: State, clients: Mapping[int, State], metrics: list[Record]) -> None:
        """Go back to the end of a round, as a checkpoint kept it."""
        self.round, self.closed = round, 0
        self.server.state = dict(server)
        self.engine.restore(clients)
        self.metrics = [r for r in metrics if r["round"] <= round and r["phase"] == "round"]

    def close(self) -> None:
        """End the processes that the engine started; otherwise they end with the simulation."""
        self.engine.close()

    @contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.protocol.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Clock:
    """Seconds spent in each activity of a round."""

    def __init__(self) -> None:
        self.seconds = {"seconds_training": 0.0, "seconds_evaluation": 0.0, "seconds_communication": 0.0}
        self._last = time.perf_counter()

    def lap(self, activity: str) -> None:
        now = time.perf_counter()
        self.seconds[f"seconds_{activity}"] += now - self._last
        self._last = now
