"""How well a model does on a client's test samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.learning.samples import Samples


@dataclass(frozen=True)
class Score:
    """Right answers and summed loss over `total` samples."""

    correct: int = 0
    total: int = 0
    loss: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.correct / self.total if self.total else float("nan")


@torch.inference_mode()
def score(model: nn.Module, samples: Samples) -> Score:
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=samples.device)
    loss = torch.zeros((), dtype=torch.float64, device=samples.device)
    for x, y in samples.chunks():
        logits = model(x)
        correct += (logits.argmax(1) == y).sum()
        loss += F.cross_entropy(logits, y, reduction="sum")
    return Score(int(correct), len(samples), float(loss))
