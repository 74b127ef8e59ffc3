from __future__ import annotations

import torch

from fedtailor.randomness import derive, numpy_stream, seeded, torch_stream


def test_streams_depend_on_every_key_and_on_nothing_else():
    keys = [(0,), (1,), (0, "a"), (0, "a", 1), (0, 1, "a"), (0, "a1")]
    assert len({derive(*k) for k in keys}) == len(keys)
    assert torch.equal(*(torch.rand(4, generator=torch_stream(3, "x", 1)) for _ in range(2)))
    assert numpy_stream(3, "x").integers(1 << 40) == numpy_stream(3, "x").integers(1 << 40)
    assert derive(0, "batches", 1, 2) == 7117115908189439814  # a change here changes every result ever published


def test_seeded_leaves_the_global_generator_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(0, "net"):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(0, "net"):
        assert torch.equal(torch.rand(2), inside)
