"""Workers that live elsewhere: who owns which client, and both ends of what passes between an engine and them.

A message is plain values, fit for JSON, and tensors that they name by number. How it travels is the engine's own affair.
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
from torch import Tensor, nn

from fedtailor.engines.base import Engine, Outcome, Send, nothing
from fedtailor.engines.worker import Worker, keep_freed_memory
from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload, State
from fedtailor.learning.scoring import Score

log = logging.getLogger("fedtailor")


class Numbered(Protocol):
    """The tensors of a message, each read when it is asked for."""

    def __getitem__(self, number: int, /) -> Tensor: ...


@dataclasses.dataclass(frozen=True)
class Request:
    """One call, for all workers at once: a tensor that goes to many clients is in it once."""

    work: str
    round: int
    contents: list[Any]  # [owner, client, [[name, number of the tensor], …]] for each client
    tensors: list[Tensor]

    @property
    def plain(self) -> dict[str, Any]:
        return {"work": self.work, "round": self.round, "contents": self.contents}


class RemoteEngine(Engine):
    """Serves clients by several workers at once, with the same numbers as `Inline` for any number of them.

    Each owns a fixed share of the clients, balanced by samples: their tensors and private states live there.
    """

    def __init__(self, worker: Worker, workers: int) -> None:
        super().__init__()
        self.worker = worker  # never serves here: the others start as copies of it
        sizes = [len(c.train) for c in worker.federation.clients]
        self.owners = balanced(sizes, min(workers, len(sizes)))

    @abstractmethod
    def ask(self, busy: Sequence[int], request: Request) -> Iterator[tuple[Any, Numbered]]:
        """Hand the request to these workers, and give what each answers as it comes."""

    def call(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        clients = sorted(clients)
        busy = sorted({self.owners[i] for i in clients})
        if not busy:
            return {}
        outcomes: dict[int, Outcome] = {}
        for plain, tensors in self.ask(busy, self._request(work, round, {i: send(i) for i in clients})):
            outcomes |= _read(plain, tensors, self.worker.protocol.device)
        return dict(sorted(outcomes.items()))

    def personal(self, round: int, client: int, payload: Payload) -> nn.Module:
        if client in self.met:
            self.worker.states[client] = self.state(client)
        try:
            return self.worker.personal(client, round, payload)
        finally:
            self.worker.states.pop(client, None)

    def state(self, client: int) -> State:
        if client not in self.met:
            return self.worker.state(client)
        return self.call("state", 0, [client], nothing)[client].up

    def _request(self, work: str, round: int, payloads: dict[int, Payload]) -> Request:
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
    """Which worker owns each client: the largest first, each to whoever has the fewest samples so far."""
    loads = [0] * workers
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += sizes[i] + 1  # a client without samples is still some work
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
    """Keeps what is logged until the next answer carries it to the engine, which has the terminal and the handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))


class Service:
    """A worker in a process of its own, which it makes fit for the purpose, and its answers to requests."""

    def __init__(self, number: int, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine's process to answer
        torch.set_num_threads(worker.protocol.threads)
        keep_freed_memory()
        self.number = number
        self.worker = worker
        self.collector = Collector()
        log.handlers, log.propagate = [self.collector], False

    def answer(self, plain: dict[str, Any], tensors: Numbered) -> tuple[dict[str, Any], list[Tensor]]:
        """What came of a request: outcomes, or what went wrong, and what was logged."""
        reply: dict[str, Any] = {}
        up: list[Tensor] = []
        try:
            reply["outcomes"] = [[i, _plain(outcome, up)] for i, outcome in self._serve(plain, tensors)]
        except FedTailorError as mistake:
            reply["mistake"] = str(mistake)
        except Exception:
            reply["trouble"] = traceback.format_exc()
        reply["log"], self.collector.said = self.collector.said, []
        return reply, up

    def _serve(self, plain: dict[str, Any], tensors: Numbered) -> Iterator[tuple[int, Outcome]]:
        held: dict[int, Tensor] = {}  # the last client's payload: what goes to everyone is read once
        for owner, i, entries in plain["contents"]:
            if owner == self.number:
                held = {k: held[k] if k in held else tensors[k].to(self.worker.protocol.device) for _, k in entries}
                payload = {name: held[k] for name, k in entries}
                yield i, self.worker.serve(plain["work"], i, plain["round"], payload)


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
