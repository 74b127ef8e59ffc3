from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtailor.nets import Net
from fedtailor.nets.fast.linear_head import is_linear_head, linear_step


def net_of(head: nn.Module) -> Net:
    torch.manual_seed(0)
    return Net(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), head).double(), "2")


@pytest.fixture
def features() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 6, generator=generator, dtype=torch.float64), torch.randint(3, (7,), generator=generator)


def test_steps_are_those_of_autograd(features: tuple[Tensor, Tensor]) -> None:
    z, y = features
    ours, theirs = net_of(nn.Linear(6, 3)), net_of(nn.Linear(6, 3))
    theirs.all.vector = ours.all.vector
    for _ in range(3):
        loss = cross_entropy(theirs.classify(z), y)
        theirs.head.step(loss, 0.5)
        assert linear_step(ours.head, z, y, 0.5).item() == pytest.approx(loss.item(), abs=1e-14)
    torch.testing.assert_close(ours.head.vector, theirs.head.vector, rtol=0, atol=1e-14)
    assert torch.equal(ours.body.vector, theirs.body.vector)


def test_a_loss_that_is_not_finite_changes_nothing(features: tuple[Tensor, Tensor]) -> None:
    net, (z, y) = net_of(nn.Linear(6, 3)), features
    before = net.all.vector
    assert not torch.isfinite(linear_step(net.head, z * float("inf"), y, 0.5))
    assert torch.equal(net.all.vector, before)


def test_only_a_plain_linear_head_is_one() -> None:
    class Scaled(nn.Linear):
        pass

    frozen = nn.Linear(6, 3)
    frozen.bias.requires_grad_(False)
    assert is_linear_head(net_of(nn.Linear(6, 3)).head)
    assert not is_linear_head(net_of(nn.Linear(6, 3)).all)
    for head in (Scaled(6, 3), frozen, nn.Linear(6, 3, bias=False), nn.Sequential(nn.Linear(6, 3))):
        assert not is_linear_head(net_of(head).head)
