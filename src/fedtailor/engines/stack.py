"""Clients side by side: each runs until it asks for something to be computed, and the same requests are computed as one.

The method of each client runs in a greenlet, a thread that stops and goes on only where it asks, so nothing races. All clients of a
worker use the same modules; while a client waits, its weights are put aside.
"""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor

from fedtailor.learning.participants import Participant
from fedtailor.learning.requests import Forward, Request, Training
from fedtailor.learning.stacked import forward, train
from fedtailor.nets.net import Net
from fedtailor.nets.stackable import Layers, stackable
from fedtailor.randomness import global_state, set_global_state

MOST = 256  # clients side by side: more gain nothing
MEMORY = 2**28  # bytes of their weights, and as much again several times while they train

IDLE = threading.local()

T = TypeVar("T")


@dataclass
class PutAside:
    """A net as it was when its client began to wait."""

    net: Net
    memory: Tensor
    edition: tuple[Tensor | None, int]
    training: bool

    @classmethod
    def of(cls, net: Net) -> PutAside:
        return cls(net, net.flat.clone(), net.seen, net.training)

    def back(self) -> None:
        self.net.flat.copy_(self.memory)
        self.net.seen = self.edition
        self.net.train(self.training)


@dataclass
class Waiting:
    """A client that waits for an answer."""

    thread: greenlet
    participant: Participant
    request: Request
    kind: Hashable
    nets: list[PutAside]
    generator: list[Tensor]
    gradients: bool
    answer: Any = None

    def back(self) -> None:
        """Make the world what it was when the client began to wait."""
        for net in self.nets:
            net.back()

    def train_alone(self) -> None:
        self.back()
        self.request.alone()
        self.asked.memory = self.asked.net.flat.clone()

    @property
    def asked(self) -> PutAside:
        """The net that the request is about."""
        return next(aside for aside in self.nets if aside.net is self.request.net)


class Stack:
    """Serves clients side by side."""

    def __init__(self) -> None:
        self._layers: dict[Net, Layers | None] = {}
        self._serving: dict[greenlet, int] = {}  # the client that a thread is at work for

    def size(self, net: Net) -> int:
        """How many clients with a net of this size are served at once."""
        return max(2, min(MOST, MEMORY // max(1, net.flat.nbytes)))

    def ask(self, participant: Participant, request: Request) -> Any:
        """The answer to a request, computed together with those of other clients if that is possible."""
        thread, kind = getcurrent(), request.kind
        if thread not in self._serving or kind is None or torch.is_inference_mode_enabled():
            return request.alone()
        if not any(net is request.net for net in participant.nets.values()) or self.layers(request) is None:
            return request.alone()
        nets = [PutAside.of(net) for net in {id(net): net for net in participant.nets.values()}.values()]
        waiting = Waiting(thread, participant, request, kind, nets, global_state(), torch.is_grad_enabled())
        assert thread.parent is not None
        return thread.parent.switch(waiting)

    def layers(self, request: Request) -> Layers | None:
        """The layers of the net that a request is about; None if it cannot be stacked."""
        net = request.net
        assert isinstance(net, Net)
        if net not in self._layers:
            self._layers[net] = stackable(net, request.samples.take(torch.tensor([0]))[0])
        return self._layers[net]

    def serve(self, jobs: Iterable[tuple[int, Callable[[], T]]]) -> Iterator[tuple[int, T]]:
        """Do the jobs of some clients side by side."""
        outside, gradients = global_state(), torch.is_grad_enabled()
        results: dict[int, T] = {}
        waiting: list[Waiting] = []

        def go_on(thread: greenlet, given: Any) -> None:
            told = thread.switch(given)
            if isinstance(told, Waiting):
                waiting.append(told)
            else:
                results[self._serving.pop(thread)] = told.pop()
                _idle().append(thread)

        try:
            with _garbage_left():
                for id, job in jobs:
                    set_global_state(outside)
                    torch.set_grad_enabled(gradients)
                    go_on(self._thread(id), job)
                while waiting:
                    torch.set_grad_enabled(gradients)
                    self._answer(waiting)
                    answered, waiting = waiting, []
                    for client in answered:
                        client.back()
                        set_global_state(client.generator)
                        torch.set_grad_enabled(client.gradients)
                        go_on(client.thread, client.answer)
        finally:
            for thread in self._serving:
                if thread:
                    thread.throw(GreenletExit)
            self._serving = {}
            set_global_state(outside)
            torch.set_grad_enabled(gradients)
        yield from sorted(results.items())

    def _thread(self, id: int) -> greenlet:
        """A thread for a client: one that has done its work before, if there is any."""
        thread = _idle().pop() if _idle() else greenlet(_one_job_after_the_other)
        thread.parent = getcurrent()
        self._serving[thread] = id
        return thread

    def _answer(self, waiting: list[Waiting]) -> None:
        """Compute what clients wait for, the same requests as one."""
        groups: dict[Hashable, list[Waiting]] = defaultdict(list)
        for client in waiting:
            groups[client.kind].append(client)
        for group in groups.values():
            layers = self.layers(group[0].request)
            assert layers is not None
            flats = torch.stack([client.asked.memory for client in group])
            passes = [client.request for client in group if isinstance(client.request, Forward)]
            trainings = [client.request for client in group if isinstance(client.request, Training)]
            if passes:
                for client, outputs in zip(group, forward(passes, layers, flats), strict=True):
                    client.answer = outputs
            else:
                for client, memory, sound in zip(group, flats, train(trainings, layers, flats), strict=True):
                    client.asked.memory = memory
                    if not sound:
                        client.train_alone()


def _one_job_after_the_other(job: Callable[[], Any]) -> None:
    """What a thread does: to make a new one for each job would take longer than all of its switches.

    Between two jobs it holds nothing: its list is emptied by whoever takes the result.
    """
    while True:
        result = [job()]
        del job
        parent = getcurrent().parent
        assert parent is not None
        job = parent.switch(result)


def _idle() -> list[greenlet]:
    """The threads without a job; they cannot leave the thread of the operating system that they were made in."""
    if not hasattr(IDLE, "threads"):
        IDLE.threads = []
    found: list[greenlet] = IDLE.threads
    return found


@contextmanager
def _garbage_left() -> Iterator[None]:
    """Leave cyclic garbage where it is: all that waiting clients hold would be searched for it again and again, a tenth of a round."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
