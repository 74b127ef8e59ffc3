"""One worker process a core. Each owns a fixed share of the clients, balanced by samples: their tensors and private states live there."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import nn

from fedtailor.engines import parcel
from fedtailor.engines.base import Engine, Outcome, Send, WorkerLost, nothing
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.learning import Payload, State
from fedtailor.learning.scoring import Score

log = logging.getLogger("fedtailor")

PATIENCE = 1.0  # seconds between a waiting worker's looks whether its parent is still there


class Processes(Engine):
    """Serves clients in several processes at once, with the same numbers as `Inline` for any number of workers."""

    def __init__(self, worker: Worker, workers: int) -> None:
        super().__init__()
        self.worker = worker  # never serves here: the processes start as copies of it
        sizes = [len(c.train) for c in worker.federation.clients]
        self.owners = balanced(sizes, min(workers, len(sizes)))
        # A fork shares the data and needs nothing to be sent, but neither OpenMP threads nor a GPU survive it.
        self.forks = sys.platform == "linux" and worker.protocol.threads == 1 and worker.protocol.device == "cpu"
        self.lines: list[socket.socket] = []
        self.processes: list[BaseProcess] = []
        self._close = weakref.finalize(self, _stop, self.lines, self.processes, os.getpid())
        for number in sorted(set(self.owners)):
            self._start(number)

    def call(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        clients = sorted(clients)
        busy = sorted({self.owners[i] for i in clients})
        if not busy:
            return {}
        request = self._request(work, round, {i: send(i) for i in clients})
        try:
            for number in busy:
                parcel.send(self.lines[number], request)
        except OSError:
            self._lost(number, work, round)
        finally:
            os.close(request)
        outcomes: dict[int, Outcome] = {}
        for answer in self._answers(busy, work, round):
            outcomes |= answer
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

    def close(self) -> None:
        self._close()

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        self.lines.append(ours)
        inherited = self.lines if self.forks else []
        context: Any = multiprocessing.get_context("fork" if self.forks else "spawn")
        process = context.Process(target=_work, args=(number, self.worker, theirs, inherited, os.getpid()), daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise FedTailorError(
                f"engine=processes with threads={self.worker.protocol.threads} on {self.worker.protocol.device} starts new Python "
                f"processes, and this method or net cannot be handed to them ({error}). Use threads=1 or engine=inline."
            ) from None
        finally:
            theirs.close()
        self.processes.append(process)

    def _request(self, work: str, round: int, payloads: dict[int, Payload]) -> int:
        """One parcel for all workers, in which a tensor that goes to many clients is written once."""
        numbers: dict[int, int] = {}
        tensors: list[torch.Tensor] = []
        for payload in payloads.values():
            for tensor in payload.values():
                if numbers.setdefault(id(tensor), len(tensors)) == len(tensors):
                    tensors.append(tensor)
        contents = [
            [self.owners[i], i, [[name, numbers[id(t)]] for name, t in payload.items()]]
            for i, payload in payloads.items()
        ]
        return parcel.pack({"work": work, "round": round, "contents": contents}, tensors)

    def _answers(self, busy: Sequence[int], work: str, round: int) -> Iterator[dict[int, Outcome]]:
        """What each worker answers, as it comes; a worker that dies is noticed at once."""
        waiting = {self.lines[number]: number for number in busy}
        ends = {self.processes[number].sentinel: number for number in busy}
        while waiting:
            ready = wait([*waiting, *ends])
            lines = [r for r in ready if isinstance(r, socket.socket)]
            if not lines:
                self._lost(ends[ready[0]], work, round)  # type: ignore[index]
            for line in lines:
                number = waiting.pop(line)
                ends.pop(self.processes[number].sentinel)
                answer = parcel.receive(line)
                if answer is None:
                    self._lost(number, work, round)
                else:
                    yield self._read(answer)

    def _read(self, answer: parcel.Parcel) -> dict[int, Outcome]:
        plain = answer.plain
        for level, message in plain["log"]:
            log.log(level, "%s", message)
        if "mistake" in plain:
            raise FedTailorError(plain["mistake"])
        if "trouble" in plain:
            raise RuntimeError(f"A worker failed:\n{plain['trouble']}")
        outcomes = {i: _outcome(answer, fields, self.worker.protocol.device) for i, fields in plain["outcomes"]}
        answer.close()
        return outcomes

    def _lost(self, number: int, work: str, round: int) -> None:
        process = self.processes[number]
        process.join(timeout=5)
        code = process.exitcode or 0
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.close()
        memory = " The usual reason is that memory ran out; fewer workers need less." if code == -signal.SIGKILL else ""
        raise WorkerLost(f"Worker {number} (process {process.pid}) {cause} in round {round} ({work}).{memory}")


def balanced(sizes: Sequence[int], workers: int) -> list[int]:
    """Which worker owns each client: the largest first, each to whoever has the fewest samples so far."""
    loads = [0] * workers
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = loads.index(min(loads))
        loads[owners[i]] += sizes[i] + 1  # a client without samples is still some work
    return owners


# -- in the worker's process ---------------------------------------------------------------------------------------------------------


class Collector(logging.Handler):
    """Keeps what is logged until the next answer carries it to the parent, which has the terminal and the handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))


def _work(number: int, worker: Worker, line: socket.socket, inherited: Iterable[socket.socket], parent: int) -> None:
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(worker.protocol.threads)
    collector = Collector()
    log.handlers, log.propagate = [collector], False
    while True:
        while not select.select([line], [], [], PATIENCE)[0]:
            if os.getppid() != parent:
                return
        request = parcel.receive(line)
        if request is None:
            return
        answer = _answer(number, worker, request, collector)
        request.close()
        try:
            parcel.send(line, answer)
        except OSError:
            return
        os.close(answer)


def _answer(number: int, worker: Worker, request: parcel.Parcel, collector: Collector) -> int:
    tensors: list[torch.Tensor] = []
    plain: dict[str, Any] = {}
    try:
        plain["outcomes"] = [[i, _plain(outcome, tensors)] for i, outcome in _serve(number, worker, request)]
    except FedTailorError as mistake:
        plain["mistake"] = str(mistake)
    except Exception:
        plain["trouble"] = traceback.format_exc()
    plain["log"], collector.said = collector.said, []
    return parcel.pack(plain, tensors)


def _serve(number: int, worker: Worker, request: parcel.Parcel) -> Iterator[tuple[int, Outcome]]:
    plain = request.plain
    held: dict[int, torch.Tensor] = {}  # the last client's payload: what goes to everyone is read once
    for owner, i, entries in plain["contents"]:
        if owner == number:
            held = {k: held[k] if k in held else request[k].to(worker.protocol.device) for _, k in entries}
            payload = {name: held[k] for name, k in entries}
            yield i, worker.serve(plain["work"], i, plain["round"], payload)


def _plain(outcome: Outcome, tensors: list[torch.Tensor]) -> dict[str, Any]:
    first = len(tensors)
    tensors.extend(outcome.up.values())
    score = None if outcome.score is None else dataclasses.astuple(outcome.score)
    return {
        "up": {name: first + k for k, name in enumerate(outcome.up)},
        "samples": outcome.samples,
        "loss": outcome.loss,
        "score": score,
        "logged": outcome.logged,
    }


def _outcome(answer: parcel.Parcel, fields: dict[str, Any], device: str) -> Outcome:
    up = {name: answer[k].to(device) for name, k in fields["up"].items()}
    score = None if fields["score"] is None else Score(*fields["score"])
    return Outcome(up, fields["samples"], fields["loss"], score, fields["logged"])


def _stop(lines: list[socket.socket], processes: list[BaseProcess], parent: int) -> None:
    if os.getpid() != parent:  # a fork has copies of engines that are not its own
        return
    for line in lines:
        line.close()
    for process in processes:
        process.join(timeout=0.2)
        if process.is_alive():
            process.kill()
            process.join()
