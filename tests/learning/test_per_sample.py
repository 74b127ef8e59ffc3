"""Sums of clipped per-sample gradients: the fast form against the plain one, and the bound on what one sample can do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.data.task import Task
from fedtailor.learning.per_sample import clipped_sum, fast_clipped_sum, layers_of, mixes_samples
from fedtailor.nets.build import build_net
from fedtailor.nets.net import Net

CLIP = 0.7


def losses(net: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="none")


def mean(net: Net, x: Tensor, y: Tensor) -> Tensor:
    return losses(net, x, y).mean()


class Mixture(nn.Module):
    """All layers with a fast form, and odd strides, paddings and dilations."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=0)
        self.series = nn.Conv1d(4, 6, 4, padding="same")
        self.wide = nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
        self.norm = nn.GroupNorm(2, 4)
        self.each = nn.Linear(4, 5)
        self.layer = nn.LayerNorm(5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.series(self.embedding(x).transpose(1, 2))
        z = self.norm(self.wide(z[:, None])).relu()
        z = self.layer(self.each(z.flatten(2).transpose(1, 2)))
        return self.fc(z.mean(1))


FLAT, WORDS = Task((5,), 3), Task((9,), 3, vocabulary=7)
KINDS: dict[str, tuple[str | nn.Module, Task]] = {
    "mlp": ("mlp", FLAT),
    "cnn": ("cnn", Task((1, 16, 16), 3)),
    "cnn1d": ("cnn1d", Task((2, 16), 3)),
    "fasttext": ("fasttext", WORDS),
    "mixture": (Mixture(), WORDS),
}


def net_and_samples(name: str) -> tuple[Net, Tensor]:
    architecture, task = KINDS[name]
    rng = torch.Generator().manual_seed(3)
    shape = (6, *task.shape)
    x = torch.randint(7, shape, generator=rng) if task.vocabulary else torch.randn(shape, generator=rng).double()
    return build_net(architecture, task, fast=False, dtype=torch.float64), x


@pytest.mark.parametrize("name", [*KINDS])
@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_the_fast_form_equals_one_sample_at_a_time(name: str, part: str) -> None:
    net, x = net_and_samples(name)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    trained = {"all": net.all, "body": net.body, "head": net.head}[part]
    layers = layers_of(trained)
    assert layers is not None
    for clip in (CLIP, 1e6):  # clipped, and not
        fast, plain = fast_clipped_sum(trained, layers, losses, x, y, clip), clipped_sum(trained, mean, x, y, clip)
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(plain / 6, trained.gradient(mean(net, x, y)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e30, -1e200, float("inf"), float("nan")])
@pytest.mark.parametrize("label", [0, 2])
@pytest.mark.parametrize("fast", [True, False])
def test_whatever_a_sample_is_the_sum_moves_by_at_most_the_clip(value: float, label: int, fast: bool) -> None:
    net, x = net_and_samples("mlp")
    y = torch.tensor([0, 1, 2, 0, 1, 2])

    def total(x: Tensor, y: Tensor) -> Tensor:
        layers = layers_of(net.all)
        assert layers is not None
        return fast_clipped_sum(net.all, layers, losses, x, y, CLIP) if fast else clipped_sum(net.all, mean, x, y, CLIP)

    without = total(x[1:], y[1:])
    x[0], y[0] = value, label
    moved = (total(x, y) - without).norm()
    assert moved <= CLIP * (1 + 1e-9)
    assert torch.isfinite(moved)


def test_a_net_that_mixes_samples_is_found() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x - x.mean(0))

    x = torch.randn(4, 5)
    assert mixes_samples(build_net(Centred(), FLAT), x)
    assert not mixes_samples(build_net("mlp", FLAT), x)


def test_other_layers_are_left_to_the_plain_form() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))
            self.fc = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x * self.scale)

    net = build_net(Scaled(), FLAT)
    assert layers_of(net.all) is None
    assert layers_of(net.head) is not None
