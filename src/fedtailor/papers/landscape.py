"""The loss around trained models: how flat the minimum is where training ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.randomness import torch_stream

REACH, POINTS = 0.5, 15  # the grid spans −REACH to REACH along both directions
CLIENTS, SAMPLES = 5, 64  # whose models are moved, and on how many of their training samples

Direction = Mapping[str, Tensor]


def axis() -> np.ndarray:
    return np.linspace(-REACH, REACH, POINTS)


def surface_of(run: Path) -> np.ndarray:
    """Return the mean training loss of clients' personal models at each grid point; computed once, then cached beside the run."""
    kept = run / "surface.csv"
    if not kept.exists():
        simulation = finished_simulation(run)
        clients = np.unique(np.linspace(0, len(simulation.everyone) - 1, CLIENTS).astype(int)).tolist()
        surfaces = []
        for i in clients:
            samples = simulation.worker.samples(simulation.federation.clients[i].train, (i, "train"))
            rows = torch.arange(min(SAMPLES, len(samples)))
            surfaces.append(surface(simulation.personal(i), samples.take(rows), samples.y[: len(rows)]))
        np.savetxt(kept, np.mean(surfaces, axis=0), delimiter=",", fmt="%.6g")
    return np.loadtxt(kept, delimiter=",")


@torch.inference_mode()
def surface(model: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    """Return the loss on (x, y) with the model moved by a·d1 + b·d2, for all a and b of the grid."""
    model.eval()
    first, second = (filter_normalised(model, purpose) for purpose in ("first", "second"))
    weights = {name: p for name, p in model.named_parameters() if name in first}
    start = {name: p.clone() for name, p in weights.items()}
    losses = np.empty((POINTS, POINTS))
    for (i, j), _ in np.ndenumerate(losses):
        a, b = axis()[i], axis()[j]
        for name, p in weights.items():
            p.copy_(start[name] + a * first[name] + b * second[name])
        losses[i, j] = F.cross_entropy(model(x), y).item()
    for name, p in weights.items():
        p.copy_(start[name])
    return losses


def filter_normalised(model: nn.Module, purpose: str) -> Direction:
    """Draw a random direction with each filter scaled to the norm of the model's own (Li et al., 2018).

    The direction is the same for all models of one shape, up to that scaling. Biases, norm layers and frozen weights are not moved.
    """
    generator = torch_stream(0, "landscape", purpose)
    found = {}
    for name, p in model.named_parameters():
        if p.requires_grad and p.dim() > 1:
            drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64).flatten(1)
            lengths = p.detach().cpu().double().flatten(1).norm(dim=1, keepdim=True)
            direction = drawn / drawn.norm(dim=1, keepdim=True) * lengths
            found[name] = direction.view(p.shape).to(p)
    return found
