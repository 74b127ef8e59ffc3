from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor import Federation
from fedtailor.data.federation import Split
from fedtailor.learning import Protocol
from fedtailor.learning.samples import Samples


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
