"""Workers in other processes: which worker holds which client, and both ends of what passes between them and an engine.

A message is plain values, fit for JSON, and numbered tensors that these refer to. How it travels is up to the engine.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import traceback
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtailor.engines.allocator import keep_freed_memory
from fedtailor.engines.base import Engine, Outcome, Send
from fedtailor.engines.work import Work
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload
from fedtailor.learning.scoring import Score

log = logging.getLogger("fedtailor")


class Numbered(Protocol):
    """The tensors of a message, each read on access."""

    def __getitem__(self, number: int, /) -> Tensor: ...


@dataclasses.dataclass(frozen=True)
class Request:
    """One call for all workers; a tensor that goes to many clients is in it once."""

    work: Work
    round: int
    contents: list[Any]  # per client: [owner, client, [[name, number of the tensor], …]]
    tensors: list[Tensor]

    @property
    def plain(self) -> dict[str, Any]:
        return {"work": self.work, "round": self.round, "contents": self.contents}


class RemoteEngine(Engine):
    """Serves clients by several workers in parallel, with the same numbers as `Inline` for any number of workers.

    Each worker holds a fixed share of the clients, balanced by samples, with their tensors and private states.
    """

    def __init__(self, worker: Worker, workers: int) -> None:
        super().__init__()
        self.worker = worker  # never serves here: the workers start as copies of it
        sizes = [len(c.train) for c in worker.federation.clients]
        self.owners = balanced(sizes, min(workers, len(sizes)))

    @abstractmethod
    def ask(self, busy: Sequence[int], request: Request) -> Iterator[tuple[Any, Numbered]]:
        """Send the request to these workers, and yield their answers as they arrive."""

    def call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        clients = sorted(clients)
        busy = sorted({self.owners[i] for i in clients})
        if not busy:
            return {}
        outcomes: dict[int, Outcome] = {}
        for plain, tensors in self.ask(busy, self._request(work, round, {i: send(i) for i in clients})):
            outcomes |= _read(plain, tensors, self.worker.protocol.device)
        return dict(sorted(outcomes.items()))

    def _request(self, work: Work, round: int, payloads: dict[int, Payload]) -> Request:
        numbers: dict[int, int] = {}
        tensors: list[Tensor] = []
        for payload in payloads.values():
            for tensor in payload.values():
                if numbers.setdefault(id(tensor), len(tensors)) == len(tensors):
                    tensors.append(tensor)
        contents = [
            [self.owners[i], i, [[name, numbers[id(t)]] for name, t in payload.items()]]
            for i, payload in payloads.items()
        ]
        return Request(work, round, contents, tensors)


def balanced(sizes: Sequence[int], workers: int) -> list[int]:
    """Return the worker of each client: largest clients first, each to the worker with the fewest samples so far."""
    loads = [0] * workers
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += sizes[i] + 1  # a client without samples still costs something
    return owners


def _read(plain: dict[str, Any], tensors: Numbered, device: str) -> dict[int, Outcome]:
    for level, message in plain["log"]:
        log.log(level, "%s", message)
    if "mistake" in plain:
        raise FedTailorError(plain["mistake"])
    if "trouble" in plain:
        raise RuntimeError(f"A worker failed:\n{plain['trouble']}")
    return {i: _outcome(fields, tensors, device) for i, fields in plain["outcomes"]}


def _outcome(fields: dict[str, Any], tensors: Numbered, device: str) -> Outcome:
    up = {name: tensors[k].to(device) for name, k in fields["up"].items()}
    return Outcome(up, fields["samples"], fields["loss"], _score(fields["score"], tensors), fields["logged"])


def _score(fields: dict[str, Any] | None, tensors: Numbered) -> Score | None:
    if fields is None:
        return None
    outputs = None if fields["outputs"] is None else tensors[fields["outputs"]]
    return Score(**{**fields, "outputs": outputs, "validation": _score(fields["validation"], tensors)})


# -- where the worker is -------------------------------------------------------------------------------------------------------------


class Collector(logging.Handler):
    """Keeps log records until the next answer carries them to the engine's process, which has the handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))


class Service:
    """A worker in a process of its own, and its answers to requests."""

    def __init__(self, number: int, worker: Worker) -> None:
        self.number = number
        self.worker = worker
        self.collector = Collector()

    def start(self) -> None:
        """Set up this process, which does nothing else: signals, threads, memory, log."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine's process
        torch.set_num_threads(self.worker.protocol.threads)
        keep_freed_memory()
        log.handlers, log.propagate = [self.collector], False

    def answer(self, plain: dict[str, Any], tensors: Numbered) -> tuple[dict[str, Any], list[Tensor]]:
        """Answer a request with outcomes, or with what went wrong, and with what was logged."""
        reply: dict[str, Any] = {}
        up: list[Tensor] = []
        try:
            reply["outcomes"] = [[i, _plain(outcome, up)] for i, outcome in self._serve(plain, tensors)]
        except FedTailorError as mistake:
            reply["mistake"] = str(mistake)
        except Exception:
            reply["trouble"] = traceback.format_exc()
        reply["log"], self.collector.records = self.collector.records, []
        return reply, up

    def _serve(self, plain: dict[str, Any], tensors: Numbered) -> Iterator[tuple[int, Outcome]]:
        entries = {i: own for owner, i, own in plain["contents"] if owner == self.number}
        held: dict[int, Tensor] = {}  # the previous client's payload: what goes to everyone is read once

        def send(i: int) -> Payload:
            nonlocal held
            held = {k: held[k] if k in held else tensors[k].to(self.worker.protocol.device) for _, k in entries[i]}
            return {name: held[k] for name, k in entries[i]}

        return self.worker.serve_all(Work(plain["work"]), plain["round"], entries, send)


def _plain(outcome: Outcome, tensors: list[Tensor]) -> dict[str, Any]:
    first = len(tensors)
    tensors.extend(outcome.up.values())
    return {
        "up": {name: first + k for k, name in enumerate(outcome.up)},
        "samples": outcome.samples,
        "loss": outcome.loss,
        "score": _plain_score(outcome.score, tensors),
        "logged": outcome.logged,
    }


def _plain_score(score: Score | None, tensors: list[Tensor]) -> dict[str, Any] | None:
    if score is None:
        return None
    number = None
    if score.outputs is not None:
        number = len(tensors)
        tensors.append(score.outputs)
    fields = {field.name: getattr(score, field.name) for field in dataclasses.fields(score)}
    return {**fields, "outputs": number, "validation": _plain_score(score.validation, tensors)}
