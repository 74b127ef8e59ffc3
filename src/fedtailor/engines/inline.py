"""The simplest engine: one worker in this process serves the clients one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fedtailor.engines.base import Engine, Outcome, Send
from fedtailor.engines.worker import Worker
from fedtailor.learning import Payload, State


class Inline(Engine):
    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    def call(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        return {i: self.worker.serve(work, i, round, send(i)) for i in sorted(clients)}

    def personal(self, round: int, client: int, payload: Payload) -> nn.Module:
        return self.worker.personal(client, round, payload)

    def state(self, client: int) -> State:
        return self.worker.state(client)
