"""The simplest engine: one worker in this process serves the clients one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from fedtailor.engines.base import Engine, Outcome, Send
from fedtailor.engines.work import Work
from fedtailor.engines.worker import Worker


class Inline(Engine):
    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    def call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        return dict(self.worker.serve_all(work, round, sorted(clients), send))
