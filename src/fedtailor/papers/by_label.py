"""How a personal model does on each label, also those that its client has few or no samples of."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedtailor.experiment.simulation import Simulation


def telling_client(counts: np.ndarray) -> int:
    """Return the client with most labels among those that lack one, which shows labels with few and with no samples."""
    held = (counts > 0).sum(axis=1)
    return int(np.argmax(np.where(held < counts.shape[1], held, -1)))


@torch.inference_mode()
def accuracy_by_label(simulation: Simulation, model: nn.Module) -> np.ndarray:
    """Return the accuracy on each label over all clients' test samples; NaN for a label without samples."""
    model.eval()
    right, total = (torch.zeros(simulation.federation.classes, dtype=torch.float64) for _ in range(2))
    for i, client in enumerate(simulation.federation.clients):
        for x, y in simulation.worker.samples(client.test, (i, "test")).chunks():
            hits = (model(x).argmax(1) == y).double().cpu()
            right.index_add_(0, y.cpu(), hits)
            total.index_add_(0, y.cpu(), torch.ones_like(hits))
    return (right / total).numpy()
