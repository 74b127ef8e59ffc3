"""One worker process per core; requests and answers travel as tensor files."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedtailor.engines import tensor_file
from fedtailor.engines.base import WorkerLost
from fedtailor.engines.remote import RemoteEngine, Request, Service
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.learning.protocol import Protocol

PATIENCE = 1.0  # seconds between a waiting worker's checks that its parent is alive


def forks(protocol: Protocol) -> bool:
    """Whether workers are forked. A fork shares the data, so nothing has to be sent; but neither OpenMP threads nor a GPU survive it."""
    return sys.platform == "linux" and protocol.threads == 1 and protocol.device == "cpu"


def survives_fork() -> bool:
    """Whether a process forked from this one can train: not if autograd has started threads here, as it does once a GPU has been used."""
    child = os.fork()
    if child == 0:
        trained = 1
        try:
            torch.zeros(1, requires_grad=True).sum().backward()
            trained = 0
        finally:
            os._exit(trained)
    return os.waitpid(child, 0)[1] == 0


class Processes(RemoteEngine):
    """Serves clients in several processes of this machine in parallel."""

    def __init__(self, worker: Worker, workers: int) -> None:
        super().__init__(worker, workers)
        self.forks = forks(worker.protocol)
        self.lines: list[socket.socket] = []
        self.processes: list[BaseProcess] = []
        self._close = weakref.finalize(self, _stop, self.lines, self.processes, os.getpid())
        for number in sorted(set(self.owners)):
            self._start(number)

    def ask(self, busy: Sequence[int], request: Request) -> Iterator[tuple[Any, tensor_file.TensorFile]]:
        file = tensor_file.pack(request.plain, request.tensors)
        try:
            for number in busy:
                tensor_file.send(self.lines[number], file)
        except OSError:
            self._lost(number, request)
        finally:
            os.close(file)
        yield from self._answers(busy, request)

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

    def _answers(self, busy: Sequence[int], request: Request) -> Iterator[tuple[Any, tensor_file.TensorFile]]:
        """Yield the workers' answers as they arrive; a worker that dies is noticed at once."""
        waiting = {self.lines[number]: number for number in busy}
        ends = {self.processes[number].sentinel: number for number in busy}
        while waiting:
            ready = wait([*waiting, *ends])
            lines = [r for r in ready if isinstance(r, socket.socket)]
            if not lines:
                self._lost(ends[ready[0]], request)  # type: ignore[index]
            for line in lines:
                number = waiting.pop(line)
                ends.pop(self.processes[number].sentinel)
                answer = tensor_file.receive(line)
                if answer is None:
                    self._lost(number, request)
                else:
                    yield answer.plain, answer
                    answer.close()

    def _lost(self, number: int, request: Request) -> None:
        process = self.processes[number]
        process.join(timeout=5)
        code = process.exitcode or 0
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.close()
        memory = " The usual reason is that memory ran out; fewer workers need less." if code == -signal.SIGKILL else ""
        raise WorkerLost(
            f"Worker {number} (process {process.pid}) {cause} in round {request.round} ({request.work}).{memory}"
        )


# -- in the worker's process ---------------------------------------------------------------------------------------------------------


def _work(number: int, worker: Worker, line: socket.socket, inherited: Iterable[socket.socket], parent: int) -> None:
    for other in inherited:
        other.close()
    service = Service(number, worker)
    service.start()
    while True:
        while not select.select([line], [], [], PATIENCE)[0]:
            if os.getppid() != parent:
                return
        request = tensor_file.receive(line)
        if request is None:
            return
        answer = tensor_file.pack(*service.answer(request.plain, request))
        request.close()
        try:
            tensor_file.send(line, answer)
        except OSError:
            return
        os.close(answer)


def _stop(lines: list[socket.socket], processes: list[BaseProcess], parent: int) -> None:
    if os.getpid() != parent:  # a forked process must not stop its parent's workers
        return
    for line in lines:
        line.close()
    for process in processes:
        process.join(timeout=0.2)
        if process.is_alive():
            process.kill()
            process.join()
