"""Engines carry payloads between the server and the workers that hold the clients' states. They never look into a payload."""

from __future__ import annotations

import logging
import socket

import torch

from fedtailor.engines.allocator import keep_freed_memory
from fedtailor.engines.base import Engine, Outcome, WorkerLost
from fedtailor.engines.inline import Inline
from fedtailor.engines.processes import Processes, forks, survives_fork
from fedtailor.engines.work import Work
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError, nearest
from fedtailor.learning.cores import cores

log = logging.getLogger("fedtailor")

NAMES = ("auto", "inline", "stacked", "processes", "ray")
STEP = 1e-3  # seconds per SGD step of a small net
FLOPS = 2e10  # multiplications and additions per second of one core in small batches
WORTHWHILE = 0.02, 0.5  # seconds of work per round, and in all rounds, above which more processes pay off
MANY, LONG = 16, 20.0  # clients per round, and seconds of a whole run, from which on `stacked` is worth a word


def start_engine(name: str, worker: Worker, workers: int = 0, ray_address: str = "") -> Engine:
    """Start the engine of this name; `auto` takes processes where they help. `workers` = 0 means one per core."""
    if name not in NAMES:
        raise FedTailorError(f"Unknown engine '{name}'.{nearest(name, NAMES)} Allowed: {', '.join(NAMES)}.")
    if ray_address and name != "ray":
        raise FedTailorError(f"ray_address={ray_address} is for engine=ray, but this is engine={name}.")
    keep_freed_memory()
    if name == "ray":
        return _ray(worker, workers, ray_address)
    if name == "stacked":
        from fedtailor.engines.stack import Stack

        worker.stack = Stack()
    possible = hasattr(socket, "send_fds")
    if name == "processes" and not possible:
        raise FedTailorError(
            "engine=processes needs to pass files between processes, which this system cannot. Use engine=inline."
        )
    workers = workers or max(1, cores() // worker.protocol.threads)
    if name == "processes" or (name in ("auto", "stacked") and possible and workers > 1 and _pays(worker)):
        if not forks(worker.protocol) or survives_fork():
            return Processes(worker, workers)
        log.warning(
            "PyTorch has trained in threads in this process, so worker processes could not train: clients are served here, one after the "
            "other, with the same numbers. In a new Python process, several cores can be used."
        )
    return Inline(worker)


def _ray(worker: Worker, workers: int, address: str) -> Engine:
    try:
        from fedtailor.engines.ray import RayActors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise FedTailorError("engine=ray needs Ray:  pip install 'fedtailor[ray]'") from None
    return RayActors(worker, workers, cores(), address)


def stacking_pays(worker: Worker) -> bool:
    """Whether `stacked` would save a user's time: many clients with a small net, in a run of some length."""
    clients, protocol = worker.federation.clients, worker.protocol
    takers = len(clients) * protocol.join_range[0]
    if protocol.device != "cpu" or takers < MANY or _seconds(worker) * protocol.rounds < LONG:
        return False
    from fedtailor.nets.stackable import stackable

    samples = next((worker.samples(c.train, (i, "train")) for i, c in worker.clients.items() if len(c.train)), None)
    net, _ = worker.modules.lend("model")
    return samples is not None and stackable(net, samples.take(torch.tensor([0]))[0]) is not None


def _pays(worker: Worker) -> bool:
    protocol = worker.protocol
    if protocol.device != "cpu" or protocol.threads > 1 or len(worker.federation.clients) < 2:
        return False
    seconds = _seconds(worker)
    return seconds > WORTHWHILE[0] and seconds * protocol.rounds > WORTHWHILE[1]


def _seconds(worker: Worker) -> float:
    """About how long one core takes for a round, one client after the other."""
    protocol, clients = worker.protocol, worker.federation.clients
    of_each = [protocol.steps * protocol.batch or len(c.train) * max(1, protocol.epochs) for c in clients]
    samples = sum(of_each) * protocol.join_range[1]
    net, _ = worker.modules.lend("model")
    return samples / protocol.batch * STEP + samples * 6 * len(net.all) / FLOPS


__all__ = ["NAMES", "Engine", "Inline", "Outcome", "Processes", "Work", "WorkerLost", "stacking_pays", "start_engine"]
