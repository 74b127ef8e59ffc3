from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.learning.head_mixing import ENOUGH, best_head_weight, best_logit_weight
from fedtailor.nets import Net


@pytest.mark.parametrize(("kl_weight", "temperature"), [(0.0, 1.0), (0.5, 1.0), (0.5, 3.0)])
def test_the_best_weight_is_that_of_a_grid(kl_weight, temperature):
    stream = torch.Generator().manual_seed(4)
    own, other = torch.randn(2, 30, 3, generator=stream, dtype=torch.float64)
    y = torch.randint(3, (30,), generator=stream)
    p, q = (torch.softmax(logits / temperature, 1) for logits in (own, other))
    divergence = (p * (p / q).log()).sum(1).mean()

    def objective(alpha: float) -> float:
        return float(F.cross_entropy(alpha * own + (1 - alpha) * other, y) + kl_weight * alpha**2 * divergence)

    found = best_logit_weight(own, other, y, kl_weight, temperature)
    assert 0 < found < 1
    assert objective(found) <= min(map(objective, np.linspace(0, 1, 1001))) + 1e-12


@pytest.fixture
def heads():
    """A net with four features and three classes, and two heads for it."""
    stream = torch.Generator().manual_seed(1)
    net = Net(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)).double())
    return net, *torch.randn(2, len(net.head), generator=stream, dtype=torch.float64)


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(2)
    return torch.randn(count, 4, generator=stream, dtype=torch.float64), torch.randint(3, (count,), generator=stream)


def test_heads_mix_by_the_weight_of_their_logits(heads):
    net, own, other = heads
    z, y = samples(50)
    logits = [z @ head[:12].view(3, 4).T + head[12:] for head in (own, other)]
    found = best_head_weight(net, own, other, z, y, 0.1, 2.0, torch.Generator())
    assert 0 < found < 1
    assert found == pytest.approx(best_logit_weight(*logits, y, 0.1, 2.0), abs=1e-9)


def test_of_many_samples_a_random_subset_decides(heads):
    z, y = samples(ENOUGH + 500)
    found = best_head_weight(*heads, z, y, 0.1, 1.0, torch.Generator().manual_seed(7))
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(7))[:ENOUGH]
    assert found == best_head_weight(*heads, z[chosen], y[chosen], 0.1, 1.0, torch.Generator())
    assert found != best_head_weight(*heads, z, y, 0.1, 1.0, torch.Generator().manual_seed(8))
