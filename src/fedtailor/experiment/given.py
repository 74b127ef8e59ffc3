"""A federation or a net made in Python: the fingerprint in the config by which it is recognised when it is given again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedtailor.data.client_data import Split
from fedtailor.data.federation import Federation
from fedtailor.data.pool import Pool, Source
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.nets.architecture import Architecture
from fedtailor.registry import option

PYTHON = "python"  # the name that a config gives to either
PIECE = 4096  # samples hashed at a time: a pool may be larger than memory


@dataclass(frozen=True)
class GivenData(Source):
    """A federation made in Python, by its fingerprint."""

    name = PYTHON

    train: int = option(0, "training samples of all clients", at_least=0)
    test: int = option(0, "test samples of all clients", at_least=0)
    names: str = option("", "checksum of the clients' names")
    sizes: str = option("", "checksum of the number of samples of each client")
    labels: str = option("", "checksum of all labels")
    samples: str = option("", "checksum of all samples")

    @property
    def fitting_partition(self) -> str:
        return "natural"

    @classmethod
    def of(cls, federation: Federation) -> GivenData:
        clients = federation.clients
        splits = [s for c in clients for s in (c.train, c.test)] + [federation.server]
        return cls(
            train=sum(len(c.train) for c in clients),
            test=sum(len(c.test) for c in clients),
            names=_digest(c.name.encode() + b"\0" for c in clients),
            sizes=_digest([str([len(s) for s in splits]).encode()]),
            labels=_digest(_bytes(t) for s in splits for t in (s.y, s.weight) if t is not None),
            samples=_digest(piece for s in splits for piece in _samples(s)),
        )

    def read(self, root: Path) -> Pool:
        raise FedTailorError(
            "The data of this run was made in Python, so it is resumed there:  ft.load(FOLDER).resume(federation=…)"
        )


@dataclass(frozen=True)
class GivenNet(Architecture):
    """A module made in Python, by its fingerprint; its initial weights are in the run folder."""

    name = PYTHON

    module: str = option("", "the class of the module")
    head: str = option("", "the submodule that is its head (empty: the last linear layer)")
    parameters: int = option(0, "number of parameters", at_least=0)
    shapes: str = option("", "checksum of the names and shapes of all parameters and buffers")
    initial: str = option("", "checksum of the initial weights")

    def __repr__(self) -> str:
        return f"{self.module} (made in Python)"

    @classmethod
    def of(cls, module: nn.Module, head: str | None) -> GivenNet:
        state = initial_weights(module)
        return cls(
            module=type(module).__name__,
            head=head or "",
            parameters=sum(p.numel() for p in module.parameters() if not is_lazy(p)),
            shapes=_digest(f"{name} {tuple(t.shape)}\n".encode() for name, t in state.items()),
            initial=weights_digest(state),
        )

    def build(self, task: Task) -> nn.Module:
        raise FedTailorError(
            f"The net of this run, {self.module or 'a module'}, was made in Python, so it is resumed there:  "
            "ft.load(FOLDER).resume(net=…)"
        )


def initial_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name; lazy layers have none yet."""
    return {name: t.detach().cpu() for name, t in module.state_dict().items() if not is_lazy(t)}


def weights_digest(state: Mapping[str, Tensor]) -> str:
    return _digest(_bytes(state[name]) for name in sorted(state))


def differences(wanted: GivenData | GivenNet, found: GivenData | GivenNet) -> list[str]:
    """Return what differs between a run's fingerprint and that of what is given now, the most telling first."""
    now: dict[str, Any] = asdict(found)
    return [name for name, value in asdict(wanted).items() if now[name] != value]


def refuse_other_data(wanted: Source, federation: Federation) -> None:
    """Refuse a federation that is not the one the run began with."""
    if not isinstance(wanted, GivenData):
        raise FedTailorError(f"This run reads its data itself ({wanted.name}): resume it without a federation.")
    found = differences(wanted, GivenData.of(federation))
    if found:
        words = {"train": "number of training samples", "test": "number of test samples", "names": "clients' names"}
        raise FedTailorError(
            "The federation is not the one that this run began with. What differs: "
            f"{', '.join(words.get(name, name) for name in found)}."
        )


def refuse_other_net(wanted: Architecture, module: nn.Module) -> None:
    """Refuse a module whose structure is not that of the one the run began with; its weights may differ."""
    if not isinstance(wanted, GivenNet):
        raise FedTailorError(f"This run builds its net itself ({wanted.name}): resume it without a net.")
    found = set(differences(wanted, GivenNet.of(module, wanted.head))) - {"initial"}
    if found:
        raise FedTailorError(
            f"The net ({type(module).__name__}) is not built like the one that this run began with ({wanted.module}). "
            f"What differs: {', '.join(sorted(found))}."
        )


def _samples(split: Split) -> Iterable[bytes]:
    for piece in torch.arange(len(split)).split(PIECE):
        yield _bytes(split.take(piece))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(pieces: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()[:32]
