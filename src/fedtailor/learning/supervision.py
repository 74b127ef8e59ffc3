"""A shared model and a private supervisor: two parts that train in turn, each on the loss of both while the other is frozen."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.data.task import Task
from fedtailor.learning.losses import Loss
from fedtailor.learning.mixing import State
from fedtailor.learning.modules import Modules
from fedtailor.learning.participants import Client
from fedtailor.nets.fitting import kind
from fedtailor.nets.net import Net, Part
from fedtailor.randomness import numpy_stream


class Branches(nn.Module):
    """A model and its supervisor side by side, their outputs added; its deep copy consists of plain modules."""

    def __init__(self, model: nn.Module, supervisor: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.supervisor = supervisor

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + self.supervisor(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Branches:
        plain = (net.plain() if isinstance(net, Net) else copy.deepcopy(net, memo) for net in self.children())
        return Branches(*plain)


class Supervised(NamedTuple):
    """What predicts, the part that is shared, the private part if there is one, and the losses on which they train (None: the task's)."""

    whole: nn.Module
    shared: Part
    private: Part | None = None
    shared_loss: Loss | None = None
    private_loss: Loss | None = None


@dataclass(frozen=True)
class Supervision:
    """How a model is supervised: by a net beside it (parallel), by the head of the same net (serial), or not at all (none).

    `nets` names the nets beside it, separated by commas; which one a client draws depends on the seed alone. `same` is the run's net, and
    `auto` is lenet-small for images and the run's net for other samples.

    >>> Supervision("parallel", "cnn, vit").groups(seed=2, clients=4)
    {'cnn': [1, 3], 'vit': [0, 2]}
    """

    arch: Literal["parallel", "serial", "none"]
    nets: str

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.nets.split(",")]

    def drawn(self, seed: int, client: int) -> int:
        """Draw the position of a client's net among the names."""
        return int(numpy_stream(seed, "supervisor", client).integers(len(self.names)))

    def groups(self, seed: int, clients: int) -> dict[str, list[int]]:
        """Return the clients that draw each name."""
        drawn = [self.names[self.drawn(seed, client)] for client in range(clients)]
        return {name: [client for client, own in enumerate(drawn) if own == name] for name in self.names}

    def architecture(self, seed: int, client: int, task: Task) -> str | None:
        """Return the name of a client's net; None is the run's net."""
        name = self.names[self.drawn(seed, client)]
        if name == "auto":
            name = "lenet-small" if kind(task) == "images" else "same"
        return None if name == "same" else name

    def shared(self, net: Net) -> Part:
        """The part of the run's net that is shared."""
        return net.body if self.arch == "serial" else net.all

    def init(self, client: Client) -> State:
        """The client's private part at the start."""
        if self.arch == "none":
            return {}
        if self.arch == "serial":
            return {"supervisor": client.net().head.vector}
        return {"supervisor": client.fresh("supervisor", self._of(client))}

    def supervised(self, client: Client, model: Tensor) -> Supervised:
        """The client's shared part with these weights, and its private part as the client has it."""
        if self.arch == "none":
            net = client.net(model=model)
            return Supervised(net, net.all)
        own = client.state["supervisor"]
        if self.arch == "serial":
            net = client.net(body=model, head=own)
            return Supervised(net, net.body, net.head)
        supervisor = client.net("supervisor", model=own, architecture=self._of(client))
        net = client.net(model=model)
        losses = beside(client, supervisor), beside(client, net)
        return Supervised(Branches(net, supervisor), net.all, supervisor.all, *losses)

    def module(self, modules: Modules, client: int) -> nn.Module:
        """The module that saved weights of both parts are loaded into."""
        net, _ = modules.lend("model")
        if self.arch != "parallel":
            return net
        architecture = self.architecture(modules.protocol.seed, client, modules.task)
        return Branches(net, modules.lend("supervisor", architecture)[0])

    def _of(self, client: Client) -> str | None:
        return self.architecture(client.protocol.seed, client.id, client.task)


def beside(client: Client, frozen: Net) -> Loss:
    """Return the task's loss of the sum of a net's outputs and those of a frozen net."""

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = frozen.eval()(x)
        return client.loss(net(x) + fixed, y)

    return loss
