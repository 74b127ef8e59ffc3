"""The simplest engine: one worker in this process serves the clients one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from fedtailor.engines.base import Engine, Outcome, Send
from fedtailor.engines.worker import Worker
from fedtailor.learning import Payload, State
from fedtailor.learning.scoring import Score


class Inline(Engine):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def hello(self, clients: Iterable[int]) -> dict[int, Payload]:
        return {i: self.worker.hello(i) for i in sorted(clients)}

    def fit(self, round: int, clients: Iterable[int], send: Send, *, evaluate: bool) -> dict[int, Outcome]:
        return {i: self.worker.fit(i, round, send(i), evaluate=evaluate) for i in sorted(clients)}

    def evaluate(self, round: int, clients: Iterable[int], send: Send, *, sync: bool) -> dict[int, Score]:
        scores = {}
        for i in sorted(clients):
            payload = send(i)
            if sync:
                self.worker.sync(i, round, payload)
            scores[i] = self.worker.evaluate(i, round, payload)
        return scores

    def sync(self, round: int, clients: Iterable[int], send: Send) -> None:
        for i in sorted(clients):
            self.worker.sync(i, round, send(i))

    def finish(self, step: int, clients: Iterable[int], send: Send) -> None:
        for i in sorted(clients):
            self.worker.finish(i, step, send(i))

    def personal(self, round: int, client: int, payload: Payload) -> nn.Module:
        return self.worker.personal(client, round, payload)

    def states(self) -> dict[int, State]:
        return self.worker.states

    def restore(self, states: Mapping[int, State]) -> None:
        self.worker.states = dict(states)
