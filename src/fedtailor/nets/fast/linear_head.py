"""SGD steps of a linear head on features without autograd, whose graph takes longer than the arithmetic of one matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedtailor.nets.net import Part


def is_linear_head(part: Part) -> bool:
    """Return whether the part is a head of one plain linear layer, with weights and bias both trained."""
    return part is part.net.head and type(part.net.classifier) is nn.Linear and len(part.parameters) == 2


@torch.no_grad()
def linear_step(part: Part, z: Tensor, y: Tensor, lr: float) -> Tensor:
    """Take one step on the cross-entropy, and return the loss; if it is not finite, nothing changes."""
    weight, bias = part.parameters
    logs = F.log_softmax(torch.addmm(bias, z, weight.T), dim=1)
    loss = F.nll_loss(logs, y)
    if torch.isfinite(loss):
        error = logs.exp_().scatter_add_(1, y[:, None], logs.new_full((len(y), 1), -1.0))  # softmax − one-hot
        weight.addmm_(error.T, z, alpha=-lr / len(y))
        bias.add_(error.sum(0), alpha=-lr / len(y))
    return loss
