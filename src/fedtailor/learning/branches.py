"""A model and its supervisor: two parts that train in turn, each on the loss of both while the other is frozen."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.learning.losses import Loss
from fedtailor.learning.participants import Client
from fedtailor.nets.net import Net, Part


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


def in_parallel(client: Client, model: Net, supervisor: Net) -> Supervised:
    """Share the model and keep the supervisor; their outputs are added."""
    losses = beside(client, supervisor), beside(client, model)
    return Supervised(Branches(model, supervisor), model.all, supervisor.all, *losses)


def alone(net: Net) -> Supervised:
    """Share the whole net, without a supervisor."""
    return Supervised(net, net.all)


def in_series(net: Net) -> Supervised:
    """Share the body of one net and keep its head, which is the supervisor."""
    return Supervised(net, net.body, net.head)


def beside(client: Client, frozen: Net) -> Loss:
    """Return the task's loss of the sum of a net's outputs and those of a frozen net."""

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = frozen.eval()(x)
        return client.loss(net(x) + fixed, y)

    return loss
