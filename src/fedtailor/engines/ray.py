"""Ray actors as workers, on this machine or across a cluster."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import sysconfig
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError
from torch import Tensor, nn

from fedtailor.engines.base import WorkerLost
from fedtailor.engines.cluster import connection
from fedtailor.engines.remote import RemoteEngine, Request, Service
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError

log = logging.getLogger("fedtailor")

PATIENCE = 30.0  # seconds between two log lines of a run that cannot start yet
ALIKE = ("fedtailor", "torch", "numpy")  # packages that affect the numbers

# dtype, shape and bytes of a tensor; Ray passes such arrays without a copy
Flat = tuple[str, tuple[int, ...], np.ndarray]


class RayActors(RemoteEngine):
    """Serves clients in several Ray actors in parallel; each is sent the samples of its own clients only, when it starts."""

    def __init__(self, worker: Worker, workers: int, cores: int, address: str = "") -> None:
        threads = worker.protocol.threads
        if worker.protocol.device != "cpu":
            raise FedTailorError(
                f"engine=ray works on CPUs, not with device={worker.protocol.device}. Use engine=processes or engine=inline for that."
            )
        connection.take(address, cores)
        self.actors: list[Any] = []
        self._close = weakref.finalize(self, _stop, self.actors, os.getpid())
        room = sum(int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"])
        super().__init__(worker, workers or max(1, room))
        count = len(set(self.owners))
        self.homes = [f"Actor {number}" for number in range(count)]  # with their places, once known
        # Reserve cores only if there are enough: further actors would wait for ever for cores of their own.
        try:
            self._start(ray.remote(num_cpus=threads if count <= room else 0, scheduling_strategy="SPREAD")(Actor))
        except BaseException:
            self.close()
            raise

    def ask(self, busy: Sequence[int], request: Request) -> Iterator[tuple[Any, Tensors]]:
        parts = _parts(request)
        pending = {}
        for number in busy:
            mine = [part for owners, part in parts.items() if number in owners]
            pending[self.actors[number].answer.remote(request.plain, *mine)] = number
        while pending:
            (ready, *_), _ = ray.wait(list(pending))
            number = pending.pop(ready)
            plain, flats = self._taken(ready, number, f"in round {request.round} ({request.work})")
            yield plain, Tensors(dict(enumerate(flats)))

    def close(self) -> None:
        self._close()

    def _start(self, kind: Any) -> None:
        """Start the actors and send each its clients; raise at once if these cannot be sent or read there."""
        pending = {}
        for number in range(len(self.homes)):
            actor = kind.remote()
            self.actors.append(actor)
            share = self.worker.share([i for i, owner in enumerate(self.owners) if owner == number])
            pending[actor.begin.remote(number, _packed(share), _versions())] = number
        while pending:
            ready, _ = ray.wait(list(pending), timeout=PATIENCE)
            if not ready:
                free = ray.available_resources().get("CPU", 0)
                log.warning("Waiting for Ray to start %d more actors; %g CPUs are free.", len(pending), free)
            for one in ready:
                number = pending.pop(one)
                place, trouble = self._taken(one, number, "while it started")
                self.homes[number] += f" ({place})"
                if trouble:
                    raise FedTailorError(f"{self.homes[number]} cannot serve: {trouble}")

    def _taken(self, ready: Any, number: int, when: str) -> Any:
        try:
            return ray.get(ready)
        except RayTaskError as error:
            raise RuntimeError(f"A worker failed:\n{error}") from None
        except RayError as error:
            self.close()
            reason = " ".join(line for line in str(error).splitlines() if not line.startswith("\t"))
            raise WorkerLost(f"{self.homes[number]} was lost {when}: {reason}") from None


class Tensors:
    """Tensors from the object store, whose memory is read-only: each is copied when it is read."""

    def __init__(self, flats: Mapping[int, Flat]) -> None:
        self.flats = flats

    def __getitem__(self, number: int) -> Tensor:
        dtype, shape, data = self.flats[number]
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        _bytes(tensor)[:] = data
        return tensor


def _parts(request: Request) -> dict[frozenset[int], Any]:
    """Put the request's tensors into the object store, each once: one object per set of actors."""
    owners: defaultdict[int, set[int]] = defaultdict(set)
    for owner, _, entries in request.contents:
        for _, number in entries:
            owners[number].add(owner)
    parts: defaultdict[frozenset[int], dict[int, Flat]] = defaultdict(dict)
    for number, actors in owners.items():
        parts[frozenset(actors)][number] = _flat(request.tensors[number])
    return {actors: ray.put(part) for actors, part in parts.items()}


def _flat(tensor: Tensor) -> Flat:
    tensor = tensor.detach().cpu().contiguous()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _bytes(tensor)


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.view(-1).view(torch.uint8).numpy()


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ALIKE}


def _packed(worker: Worker) -> bytes:
    """Pickle a worker, with the code of its method and net where these are the user's own and not of an installed package."""
    own = _own_modules(worker)
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(worker)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise FedTailorError(
            f"engine=ray sends the method and the net to other processes, and these cannot be sent ({error}). Use engine=inline."
        ) from None
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(worker: Worker) -> list[ModuleType]:
    net = worker.modules.architecture
    parts = [worker.method, *(net.modules() if isinstance(net, nn.Module) else [net])]
    names = {cls.__module__ for part in parts for cls in type(part).__mro__}
    return [sys.modules[name] for name in sorted(names) if not _installed(sys.modules[name])]


def _installed(module: ModuleType) -> bool:
    """Return whether every node can be expected to have a module: it is of Python, an installed package, or FedTailor."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "fedtailor":
        return True
    return any(word in file for word in ("site-packages", "dist-packages", sysconfig.get_path("stdlib")))


def _stop(actors: list[Any], parent: int) -> None:
    if os.getpid() != parent:  # a forked process must not stop its parent's actors
        return
    if ray.is_initialized():
        for actor in actors:
            ray.kill(actor)
    connection.leave()


# -- where the actor is --------------------------------------------------------------------------------------------------------------


class Actor:
    def begin(self, number: int, packed: bytes, versions: dict[str, str]) -> tuple[str, str]:
        """Take in a share of the clients; return the actor's place, and the reason if it cannot serve."""
        place = f"process {os.getpid()} on {ray.util.get_node_ip_address()}"
        other = [f"{name} {v} instead of {versions[name]}" for name, v in _versions().items() if v != versions[name]]
        if other:
            return place, f"its node has {', '.join(other)}. Install the same packages on all nodes."
        try:
            # It comes from the process that started this actor; Ray itself unpickles every argument of a call.
            worker = cloudpickle.loads(packed)
        except Exception as error:  # a user's own code may raise anything while it is loaded
            return place, f"its node cannot read the method or net ({type(error).__name__}: {error})."
        self.service = Service(number, worker)
        self.service.start()
        return place, ""

    def answer(self, plain: dict[str, Any], *parts: dict[int, Flat]) -> tuple[dict[str, Any], list[Flat]]:
        reply, up = self.service.answer(plain, Tensors({k: flat for part in parts for k, flat in part.items()}))
        return reply, [_flat(tensor) for tensor in up]
