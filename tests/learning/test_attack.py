"""PGD: it stays in its ball and in the valid range, raises the loss, and is repeatable."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Protocol
from fedtailor.learning.attack import Box, attack_box, pgd
from fedtailor.learning.samples import Samples
from fedtailor.nets import Net

EPSILON = 8 / 255


def images(n: int = 600) -> Samples:
    """More than one forward pass holds, with black and white pixels among them, each channel normalized in its own way."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 3, 4, 4), dtype=np.uint8)
    x[:, 0] = 0
    x[:, 1, 0] = 255
    federation = Federation.from_clients([(x, rng.integers(0, 3, n))], test_share=0.0)
    scaled = dataclasses.replace(federation.description, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5))
    federation = dataclasses.replace(federation, description=scaled)
    return Samples(federation.clients[0].train, federation, Protocol(dtype="float64"), ready=True)


def net_of(x: torch.Tensor) -> Net:
    torch.manual_seed(0)
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 8), nn.Tanh(), nn.Linear(8, 3)).double())


def losses(net: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(x), y, reduction="none").detach()


def attacked(samples: Samples, net: Net, seed: int = 1, **options) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    return pgd(net, samples.x, samples.y, attack_box(samples), stream, **options)


def test_it_stays_within_epsilon_and_among_pixels_and_raises_the_loss():
    samples = images()
    net = net_of(samples.x)
    moved = attacked(samples, net)
    before, after = (x * samples.std + samples.mean for x in (samples.x, moved))
    assert (after - before).abs().max() <= EPSILON + 1e-9
    assert after.min() >= -1e-9
    assert after.max() <= 1 + 1e-9
    assert (after - before).abs().max() > 0.9 * EPSILON
    rise = losses(net, moved, samples.y) - losses(net, samples.x, samples.y)
    assert (rise > 0).float().mean() > 0.95
    random_start = losses(net, attacked(samples, net, steps=0), samples.y) - losses(net, samples.x, samples.y)
    assert rise.mean() > 5 * random_start.mean().abs()


def test_the_same_stream_gives_the_same_samples_and_leaves_the_net_alone():
    samples = images(20)
    net = net_of(samples.x)
    weights = net.all.vector
    first, again, other = (attacked(samples, net, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(net.all.vector, weights)
    assert all(p.grad is None for p in net.parameters())
    assert not first.requires_grad


def test_two_steps_by_hand():
    samples = images(5)
    net = net_of(samples.x)
    moved = attacked(samples, net, steps=2, epsilon=0.05, step=0.03)
    pixels = samples.x * samples.std + samples.mean
    noise = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    place = (pixels + 0.05 * (2 * noise - 1)).clamp(0, 1)
    for _ in range(2):
        place = place.detach().requires_grad_()
        F.cross_entropy(net((place - samples.mean) / samples.std), samples.y).backward()
        place = (place + 0.03 * place.grad.sign()).detach()
        place = torch.minimum(torch.maximum(place, pixels - 0.05), pixels + 0.05).clamp(0, 1)
    torch.testing.assert_close(moved, (place - samples.mean) / samples.std, rtol=0, atol=1e-9)


def test_the_published_space_clamps_what_is_normalized():
    samples = images(30)
    box = attack_box(samples, "normalised")
    moved = pgd(net_of(samples.x), samples.x, samples.y, box, torch.Generator().manual_seed(0))
    assert moved.min() == 0
    assert moved.max() == 1
    assert samples.x.min() < -1  # these pixels are gone


def test_measurements_have_no_bounds_and_text_cannot_be_attacked(federation):
    split = federation.clients[0].train
    samples = Samples(split, federation, Protocol(dtype="float64"), ready=True)
    box = attack_box(samples)
    assert isinstance(box, Box)
    moved = pgd(net_of(samples.x), samples.x, samples.y, box, torch.Generator().manual_seed(0), epsilon=0.3, step=0.1)
    assert (moved - samples.x).abs().max() == pytest.approx(0.3)
    text = Federation.from_clients([(np.arange(40).reshape(10, 4), np.arange(10) % 2)])
    with pytest.raises(FedTailorError, match="Token ids"):
        attack_box(Samples(text.clients[0].train, text, Protocol(), ready=True))
