from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor import Federation
from fedtailor.data.client_data import Split
from fedtailor.learning import Protocol
from fedtailor.learning.samples import Samples
from fedtailor.nets.build import build_net


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_subset_is_samples_of_its_own(ready, mapped):
    pool = np.random.default_rng(0).integers(0, 256, (9, 4, 4), dtype=np.uint8)
    federation = Federation.from_clients([(pool, np.arange(9) % 3, pool[:2], np.arange(2))])
    split = federation.clients[0].train
    if mapped:  # a client that holds some rows of a larger pool
        split = Split(split.x, split.y[[8, 1, 5, 3]], torch.tensor([8, 1, 5, 3]))
    whole = Samples(split, federation, Protocol(), ready=ready)
    rows = torch.tensor([2, 0, 3])
    some = whole.subset(rows)
    assert len(some) == 3
    assert torch.equal(some.y, whole.y[rows])
    assert torch.equal(some.take(torch.arange(3)), whole.take(rows))
    assert torch.equal(torch.cat([x for x, _ in some.chunks()]), whole.take(rows))
    twice = some.subset(torch.tensor([1]))
    assert torch.equal(twice.take(torch.tensor([0])), whole.take(torch.tensor([0])))
    (x, y), *_ = some.batches(3, 1, torch.Generator().manual_seed(1))
    assert sorted(y.tolist()) == sorted(some.y.tolist())
    assert len(x) == 3
    assert len(whole) == len(split)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_features_are_computed_once_as_long_as_the_body_is_the_same(monkeypatch, ready, name):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (5, 1, 28, 28), np.uint8), [0, 1, 2, 0, 1]
    federation = Federation.from_clients([(x, y, x, y)])
    samples = Samples(federation.clients[0].train, federation, Protocol(), ready=ready)
    net = build_net(name, federation.task)
    passes = []
    forward = net.features
    monkeypatch.setattr(net, "features", lambda x: passes.append(len(x)) or forward(x))

    def plain() -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([forward(x) for x, _ in samples.chunks()])

    first = samples.embedded(net)
    assert torch.equal(first, plain())
    assert torch.equal(samples.embedded(net), first)
    assert len(passes) == (1 if ready else 2)  # without room for the samples there is none for their features
    net.head.vector = net.head.vector + 1  # features do not depend on the head
    assert torch.equal(samples.embedded(net), first)
    assert len(passes) == (1 if ready else 3)
    value = net.body.parameters[-1]
    with torch.no_grad():
        value.view(-1)[0] += 1  # one weight of the body, changed in place
    changed = samples.embedded(net)
    assert not torch.equal(changed, first)
    assert torch.equal(changed, plain())
    if net.has_batchnorm:
        net.local_buffers.add_(0.5)
        assert not torch.equal(samples.embedded(net), changed)
        assert torch.equal(samples.embedded(net), plain())
