from __future__ import annotations

import math

import torch

from fedtailor.learning import mixing, similarity
from fedtailor.learning.similarity import label_similarity, similarity_weights, squared_distances
from fedtailor.methods.fedamp import FedAMP


def test_label_similarity_is_the_cosine_whether_of_counts_or_shares():
    counts = torch.tensor([[3, 4, 0], [0, 0, 2], [1, 1, 1], [0, 0, 0]])
    found = label_similarity(counts)
    assert math.isclose(found[0, 2], 7 / (5 * math.sqrt(3)), rel_tol=1e-12)
    assert found[0, 1] == 0
    assert torch.equal(found[3], torch.zeros(4, dtype=torch.float64))  # no samples: like no one
    shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(label_similarity(shares), found, rtol=0, atol=1e-12)
    torch.testing.assert_close(label_similarity(counts, counts[[2, 0]]), found[:, [2, 0]], rtol=0, atol=1e-12)


def test_similarity_weights_sum_to_one_or_are_zero_where_nothing_is_alike():
    labels = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    found = similarity_weights(labels, labels[[0, 2]])
    torch.testing.assert_close(found[0], torch.tensor([1 / 1.6, 0.6 / 1.6], dtype=torch.float64))
    assert found[1].tolist() == [0, 0]


def test_squared_distances_against_a_double_loop():
    w = torch.randn(6, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.tensor([[(a - b).square().sum().item() for b in w] for a in w], dtype=torch.float64)
    torch.testing.assert_close(squared_distances(w), expected, rtol=0, atol=1e-12)


def test_small_distances_survive_a_large_common_part():
    step = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) * 1e-2
    w = 5 + step  # ‖w‖² is 12,500, the distances are about 0.1
    exact = squared_distances(w.double())
    torch.testing.assert_close(squared_distances(w).double(), exact, rtol=1e-3, atol=0)
    assert torch.equal(squared_distances(w).diagonal(), torch.zeros(4))


def test_blocks_of_rows_and_columns_leave_nothing_out(monkeypatch):
    w = torch.randn(11, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = squared_distances(w)
    monkeypatch.setattr(similarity, "ROWS", 4)
    monkeypatch.setattr(mixing, "BLOCK", 10)
    torch.testing.assert_close(squared_distances(w), whole, rtol=0, atol=1e-12)
    assert torch.equal(squared_distances(w), squared_distances(w).T)


def test_models_that_differ_by_a_ten_thousandth_weigh_as_by_the_direct_formula():
    rng = torch.Generator().manual_seed(0)
    common, step = torch.randn(30_000, generator=rng), torch.randn(40, 30_000, generator=rng)
    step *= torch.linspace(0.5, 2, 40).unsqueeze(1)  # some nearer than others
    w = common * (1 + 1e-4 * step)
    direct = torch.stack([(w.double() - row.double()).square().sum(1) for row in w])
    found = squared_distances(w).double()
    off = ~torch.eye(40, dtype=torch.bool)
    assert (found / direct - 1)[off].abs().max() < 1e-5
    ours, theirs = (FedAMP().attention(distances) for distances in (found, direct))
    assert (ours / theirs - 1)[off].abs().max() < 1e-5
