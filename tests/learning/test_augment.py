"""Augmentation: what a random view may be, when samples are augmented and when not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedtailor import Federation, FedTailorError, Protocol, Simulation
from fedtailor.learning.augment import flip_crop
from fedtailor.learning.samples import Samples
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP


def pictures(n: int = 40) -> Federation:
    rng = np.random.default_rng(0)
    federation = Federation.from_clients([(rng.integers(0, 256, (n, 2, 6, 5), dtype=np.uint8), np.arange(n) % 3)])
    scaled = dataclasses.replace(federation.description, mean=(0.3, 0.6), std=(0.2, 0.4))
    return dataclasses.replace(federation, description=scaled)


def test_every_view_is_a_shift_of_the_image_or_of_its_mirror_image():
    x = torch.rand(200, 2, 6, 5, generator=torch.Generator().manual_seed(0))
    black = torch.tensor([-1.5, -0.5]).view(2, 1, 1)
    views = flip_crop(x, black, torch.Generator().manual_seed(1))
    found = set()
    for image, view in zip(x, views, strict=True):
        matches = set()
        for mirrored in (False, True):
            canvas = black.expand(2, 14, 13).clone()
            canvas[:, 4:10, 4:9] = image.flip(2) if mirrored else image
            shifts = ((top, left) for top in range(9) for left in range(9))
            matches |= {(mirrored, t, s) for t, s in shifts if torch.equal(canvas[:, t : t + 6, s : s + 5], view)}
        assert len(matches) >= 1
        found |= matches
    assert {m for m, _, _ in found} == {False, True}
    assert {t for _, t, _ in found} == {s for _, _, s in found} == set(range(9))


def test_batches_are_augmented_alike_once_or_batch_by_batch_and_nothing_else_is():
    federation = pictures()
    split, protocol = federation.clients[0].train, Protocol(augment="flip-crop")
    ready, lazy = (Samples(split, federation, protocol, ready=r) for r in (True, False))
    plain = Samples(split, federation, Protocol(), ready=True)
    streams = [torch.Generator().manual_seed(4) for _ in range(3)]
    seen = [list(s.batches(8, 2, g)) for s, g in zip((ready, lazy, plain), streams, strict=True)]
    for (a, la), (b, lb), (c, _) in zip(*seen, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(la, lb)
        assert a.shape == c.shape
        assert not torch.equal(a, c)
    assert torch.equal(seen[0][0][1], seen[2][0][1])  # the first batch has the same samples, seen differently
    first = seen[0][0][0][:, 0]  # 76.5 would be normalized to 0: no pixel is
    assert not (first == 0).any()
    assert torch.isclose(first, torch.tensor(-0.3 / 0.2)).double().mean() > 0.1
    assert all(torch.equal(x, z) for (x, _), (z, _) in zip(ready.chunks(), plain.chunks(), strict=True))


def test_a_head_trains_on_augmented_images_too():
    federation = pictures()
    heads = [
        Simulation(federation, FedRep(), MLP(hidden=(4,)), rounds=1, epochs=0, augment=augment).run().state(0)["head"]
        for augment in ("none", "flip-crop")
    ]
    assert not torch.equal(*heads)


def test_what_is_no_image_is_refused(federation):
    with pytest.raises(FedTailorError, match="needs images"):
        Simulation(federation, "fedavg", "mlp", augment="flip-crop")
