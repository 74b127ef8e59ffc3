"""Parts of a net by name: what a name stands for, and that a part of several spans trains as body and head do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtailor.errors import FedTailorError
from fedtailor.nets import Net
from fedtailor.nets.net import Part, Pull


class RMSLikeNorm(nn.Module):
    """A normalisation layer that is none of PyTorch's, as large models have them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.LayerNorm(5), RMSLikeNorm(5), nn.Linear(5, 3)
    )


NORM = ["1.weight", "1.bias", "4.weight", "4.bias", "5.scale"]
STATISTICS = ["1.running_mean", "1.running_var"]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.randint(3, (8,), generator=g)


def weights_of(reference: nn.Module, part: Part) -> Tensor:
    state = reference.state_dict()
    return torch.cat([state[name].flatten() for name in part.entries])


def test_names_stand_for_groups_modules_and_patterns() -> None:
    net = Net(module())
    assert list(net.part("norm").entries) == NORM
    assert list(net.part("3").entries) == ["3.weight", "3.bias"]
    assert list(net.part("head", "0.bias").entries) == ["0.bias", "6.weight", "6.bias"]
    assert list(net.part("*.bias").entries) == ["0.bias", "1.bias", "3.bias", "4.bias", "6.bias"]
    assert list(net.rest("norm", "head").entries) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert net.part("norm") is net.part("norm")


def test_parts_that_the_net_has_already_are_these() -> None:
    net = Net(module())
    assert net.part("head") is net.head
    assert net.part("6") is net.head
    assert net.rest("head") is net.body
    assert net.rest() is net.part("*") is net.part("body", "head") is net.all
    assert len(net.part()) == 0
    frozen = module()
    frozen[:6].requires_grad_(False)
    all_head = Net(frozen)
    assert all_head.part("head") is all_head.head
    assert all_head.rest("head") is all_head.body


def test_statistics_belong_to_the_norm_where_they_travel() -> None:
    net = Net(module(), carry_buffers=True)
    assert list(net.part("norm").entries) == STATISTICS + NORM
    assert net.part("norm").trainable(net.part("norm").vector).tolist() == net.part("norm").weights.tolist()
    assert not set(STATISTICS) & set(net.rest("norm").entries)


def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        FedTailorError, match=r"called '\*\.lora_A'\. There are body, head, norm, and what trains: 0\.wei"
    ):
        Net(module()).part("*.lora_A")
    assert len(Net(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))).part("norm")) == 0  # a group may be empty


def test_a_vector_of_several_spans_is_a_copy_that_loads_again() -> None:
    net = Net(module())
    part, rest = net.part("norm"), net.rest("norm")
    before, others = part.vector, rest.vector
    assert torch.equal(before, weights_of(module(), part))
    assert len(part) + len(rest) == len(net.all)
    part.vector = before + 1
    assert torch.equal(part.vector, before + 1)
    assert torch.equal(rest.vector, others)
    assert torch.equal(part.named(part.vector)["5.scale"], torch.full((5,), 2.5))
    with pytest.raises(ValueError, match="the norm has 27 entries"):
        part.vector = others


@pytest.mark.parametrize("names", [("norm",), ("*.bias",), ("head", "0")])
def test_a_step_is_that_of_sgd_on_these_parameters(names: tuple[str, ...], batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    net, reference = Net(module()), module()
    part = net.part(*names)
    chosen = [p for n, p in reference.named_parameters() if n in part.entries]
    gradients = torch.autograd.grad(cross_entropy(reference(x), y), chosen)
    gradient = part.gradient(cross_entropy(net(x), y))
    torch.testing.assert_close(gradient, torch.cat([g.flatten() for g in gradients]))
    along = torch.linspace(-1, 1, len(gradient))
    assert part.directional_derivative(cross_entropy(net(x), y), along) == pytest.approx(float(gradient @ along))
    before = part.vector
    part.step(cross_entropy(net(x), y), lr=0.3)
    torch.testing.assert_close(part.vector, before - 0.3 * gradient)
    part.vector = before
    part.step(None, lr=0.3, gradient=gradient)
    torch.testing.assert_close(part.vector, before - 0.3 * gradient)
    assert torch.equal(net.rest(*names).vector, weights_of(module(), net.rest(*names)))


def test_a_pull_on_some_spans_of_what_trains() -> None:
    net = Net(module())
    part, rest = net.part("norm"), net.rest("norm")
    centre = part.vector + torch.arange(len(part)) / 10
    expected = torch.zeros(len(net.all))
    marked = {name: torch.zeros_like(t) for name, t in net.all.entries.items()}
    marked.update(part.named(0.7 * (part.vector - centre)))
    torch.cat([t.flatten() for t in marked.values()], out=expected)
    gradient = net.all.pull_gradient(Pull(centre, 0.7, part))
    torch.testing.assert_close(gradient, expected)
    before = net.all.vector
    net.all.step(None, 0.1, Pull(centre, 0.7, part))
    torch.testing.assert_close(net.all.vector, before - 0.1 * expected)
    with pytest.raises(ValueError, match="a pull on the norm cannot be part of a step on the not norm"):
        rest.step(None, 0.1, Pull(centre, 0.7, part))


def test_mixing_and_the_difference_of_several_spans() -> None:
    own, other, place = (Net(module()) for _ in range(3))
    other.all.vector = torch.linspace(-1, 1, len(other.all))
    place.part("norm").mix(own.part("norm"), other.part("norm"), 0.3)
    expected = torch.lerp(other.part("norm").vector, own.part("norm").vector, 0.3)
    assert torch.equal(place.part("norm").vector, expected)
    assert torch.equal(place.rest("norm").vector, own.rest("norm").vector)
    difference = own.part("norm").difference(other.part("norm"))
    assert torch.equal(difference, own.part("norm").vector - other.part("norm").vector)
