"""Two nets side by side, their outputs added; one trains while the other stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.learning.losses import Loss
from fedtailor.learning.participants import Client
from fedtailor.nets.net import Net


class Branches(nn.Module):
    """A model and its supervisor, their outputs added; a copy of it is one of plain modules."""

    def __init__(self, model: nn.Module, supervisor: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.supervisor = supervisor

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + self.supervisor(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Branches:
        plain = (net.plain() if isinstance(net, Net) else copy.deepcopy(net, memo) for net in self.children())
        return Branches(*plain)


def beside(client: Client, frozen: Net) -> Loss:
    """The task's loss of the sum of outputs, while the other net stays as it is."""
    frozen.eval()

    def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = frozen(x)
        return client.loss(net(x) + fixed, y)

    return loss
