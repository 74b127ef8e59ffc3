"""A net with what comes before and after it: raw samples in, probabilities out. This is what is exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtailor.data.description import Description


class Program(nn.Module):
    """Read raw samples as a description says, run the net, and turn its outputs into answers.

    Answers (n, classes) are the probabilities of classes, in the order of the labels; of a multi-label task those of each label being
    there; of a regression the predicted numbers.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, description: Description) -> None:
        super().__init__()
        self.net = net
        self.description = description
        self.dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
        channels = (-1,) + (1,) * (len(description.shape) - 1)
        self.register_buffer("mean", torch.tensor(description.mean, dtype=self.dtype).view(channels))
        self.register_buffer("std", torch.tensor(description.std, dtype=self.dtype).view(channels))
        self.eval()

    def forward(self, raw: Tensor) -> Tensor:
        return self.answers(self.outputs(raw))

    def outputs(self, raw: Tensor) -> Tensor:
        """The outputs of the net: logits, or the numbers of a regression."""
        return self.net(self.inputs(raw))

    def inputs(self, raw: Tensor) -> Tensor:
        """What the net reads, as in training."""
        if self.description.columns:
            return self.description.features(raw).to(self.dtype)
        if self.description.dtype == "uint8":
            return raw.to(self.dtype).div(255).sub(self.mean).div(self.std)
        return raw.to(self.dtype) if raw.is_floating_point() else raw.long()

    def answers(self, outputs: Tensor) -> Tensor:
        match self.description.kind:
            case "multiclass":
                return outputs.softmax(1)
            case "binary":
                return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=1)
            case "multilabel":
                return outputs.sigmoid()
            case "regression":
                return outputs

    def example(self) -> Tensor:
        """Three raw samples of the right shape and type, to trace the program with."""
        if self.description.columns:
            counts = torch.tensor([len(column.values) for column in self.description.columns], dtype=torch.float64)
            missing, unseen = torch.full_like(counts, torch.nan), torch.where(counts > 0, -1.0, 1.0)
            return torch.stack([torch.zeros_like(counts), missing, unseen])
        shape = (3, *self.description.shape)
        if self.description.vocabulary:
            return torch.arange(3 * torch.Size(shape[1:]).numel()).view(shape) % self.description.vocabulary
        dtype: torch.dtype = getattr(torch, self.description.dtype)
        values = torch.linspace(0, 255 if dtype == torch.uint8 else 1, torch.Size(shape).numel())
        return values.view(shape).to(dtype)
