"""Class-wise Gaussians: their estimate against NumPy, and the moments of what is drawn from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor.learning.gaussian import (
    class_statistics,
    drawn_features,
    drawn_samples,
    gaussians_of,
    kept_where_unseen,
    spread_between,
    spread_total,
)

CLIENTS, CLASSES, DIMENSIONS = 7, 4, 3


@pytest.fixture
def means():
    """Class means of seven clients; class 2 is at one client only, class 3 at none."""
    stream = torch.Generator().manual_seed(1)
    means = torch.randn(CLIENTS, CLASSES, DIMENSIONS, generator=stream, dtype=torch.float64) * 2
    present = torch.ones(CLIENTS, CLASSES, dtype=torch.bool)
    present[2:5, 1] = False
    present[1:, 2] = False
    present[:, 3] = False
    means[~present] = 0
    centres = means.sum(0) / present.sum(0).clamp(min=1).unsqueeze(1)
    return means, present, centres


def covariance(means, present, c):
    return np.cov(means[present[:, c], c].numpy(), rowvar=False)


def test_spread_is_the_scatter_of_client_means(means):
    spread = spread_between(*means)
    full = spread_between(*means, full=True)
    for c in (0, 1):
        expected = covariance(*means[:2], c)
        np.testing.assert_allclose(spread[c].square(), np.diag(expected) + 1e-6, rtol=1e-12)
        np.testing.assert_allclose(full[c].T @ full[c], expected, rtol=1e-10, atol=1e-12)
    for c in (2, 3):
        assert not spread[c].any()
        assert not full[c].any()


def test_total_spread_is_that_of_pooled_samples():
    stream = torch.Generator().manual_seed(2)
    z = torch.randn(5, 40, DIMENSIONS, generator=stream, dtype=torch.float64) + torch.arange(5.0).view(5, 1, 1)
    pooled = z.reshape(-1, DIMENSIONS)
    spread = spread_total(z.square().mean(1).mean(0, keepdim=True), z.mean(1).mean(0, keepdim=True))
    torch.testing.assert_close(spread[0], pooled.std(0, correction=0), rtol=1e-10, atol=0)
    assert not spread_total(torch.tensor([[0.0]]), torch.tensor([[1e-3]])).isnan().any()


@pytest.mark.parametrize("full", [False, True])
def test_drawn_features_have_the_means_and_covariances_asked_for(means, full):
    spread = spread_between(*means, full=full)
    scale = torch.tensor([1.0, 0.5, 1.0, 1.0], dtype=torch.float64)
    labels = torch.arange(CLASSES).repeat(40_000)
    z = drawn_features(means[2], spread, scale, labels, torch.Generator().manual_seed(3))
    for c, gamma in ((0, 1.0), (1, 0.5)):
        own, expected = z[labels == c], covariance(*means[:2], c)
        expected = gamma**2 * (expected if full else np.diag(np.diag(expected)))
        error = np.sqrt(np.diag(expected) / len(own))
        assert (np.abs((own.mean(0) - means[2][c]).numpy()) < 4 * error).all()
        tolerance = 5 * np.sqrt(np.outer(np.diag(expected), np.diag(expected)) * 2 / len(own))
        assert (np.abs(np.cov(own.numpy(), rowvar=False) - expected) < tolerance + 1e-5).all()
    for c in (2, 3):  # no spread: copies of the centre
        assert torch.equal(z[labels == c], means[2][c].expand(40_000, -1))


def test_classes_not_seen_now_keep_what_was_known():
    seen = torch.tensor([True, False])
    new, old = torch.ones(2, 3), torch.full((2, 3), 5.0)
    assert kept_where_unseen(seen, new, old).tolist() == [[1, 1, 1], [5, 5, 5]]
    assert kept_where_unseen(seen, new, None) is new


@pytest.mark.parametrize(("rank_new", "rank_old"), [(1, 3), (3, 1)])
def test_matrices_of_different_rank_keep_their_covariances(rank_new, rank_old):
    stream = torch.Generator().manual_seed(4)
    new, old = (torch.randn(2, rank, 5, generator=stream) for rank in (rank_new, rank_old))
    kept = kept_where_unseen(torch.tensor([True, False]), new, old)
    assert kept.shape == (2, 3, 5)
    torch.testing.assert_close(kept[0].T @ kept[0], new[0].T @ new[0])
    torch.testing.assert_close(kept[1].T @ kept[1], old[1].T @ old[1])


def test_a_client_sends_class_means_and_only_if_asked_means_of_squares():
    z, y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]), torch.tensor([0, 0, 2])
    sent = class_statistics(z, y, 3)
    assert sent["prototypes"].tolist() == [[2, 3], [0, 0], [5, 0]]
    assert sent["classes"].tolist() == [True, False, True]
    assert sent.keys() == {"prototypes", "classes"}
    assert class_statistics(z, y, 3, squares=True)["squares"].tolist() == [[5, 10], [0, 0], [25, 0]]


@pytest.mark.parametrize("kind", [None, "diag", "full", "total"])
def test_clients_statistics_make_gaussians_and_unseen_classes_keep_theirs(means, kind):
    means, present, centres = means
    statistics = [
        {"prototypes": m, "classes": here, "squares": m.square() + 0.25 * here.unsqueeze(1)}
        for m, here in zip(means, present, strict=True)
    ]
    before = {
        "prototypes": torch.full((CLASSES, DIMENSIONS), 9.0).double(),
        "known": torch.tensor([False] * 3 + [True]),
    }
    found = gaussians_of(statistics, before, kind)
    torch.testing.assert_close(found["prototypes"][:3], centres[:3])
    assert (found["prototypes"][3] == 9).all()
    assert found["known"].tolist() == [True] * 4
    assert ("spread" in found) == (kind is not None)
    if kind == "total":
        variance = (means[:, 0].square().mean(0) + 0.25) - centres[0].square()
        torch.testing.assert_close(found["spread"][0], variance.sqrt())
    elif kind is not None:
        torch.testing.assert_close(found["spread"], spread_between(means, present, centres, full=kind == "full"))


def test_samples_are_drawn_of_known_classes_as_counts_say():
    level = torch.arange(1.0, 4.0).unsqueeze(1).expand(3, DIMENSIONS)
    known, counts = torch.tensor([True, True, False]), torch.tensor([3.0, 1.0, 4.0])

    def drawn(**options):
        gaussians = {"prototypes": 10 * level, "spread": level, "known": known}
        return drawn_samples(gaussians, counts, 4000, torch.Generator().manual_seed(0), **options)

    z, y = drawn()
    assert set(y.tolist()) == {0, 1}
    assert (y == 0).sum() / (y == 1).sum() == pytest.approx(3, rel=0.1)
    assert z[y == 1].std() == pytest.approx(2 * 1 / 4, rel=0.1)  # its share of the most frequent class's count
    z, y = drawn(scaled=False, uniform=True)
    assert (y == 0).sum() / (y == 1).sum() == pytest.approx(1, rel=0.1)
    assert z[y == 1].std() == pytest.approx(2, rel=0.1)
