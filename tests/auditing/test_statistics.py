from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedtailor.auditing.statistics import auroc, resampled, share, true_positives


def test_area_is_that_of_scikit_learn_with_ties():
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 6, 40) + 1.0, rng.integers(0, 6, 70) * 1.0
    labels = np.repeat([1, 0], [40, 70])
    expected = roc_auc_score(labels, np.concatenate([positive, negative]))
    assert auroc(positive, negative).value == pytest.approx(expected, abs=1e-12)


def test_the_interval_of_the_area_covers_the_truth_about_95_times_of_100():
    rng = np.random.default_rng(1)
    truth = stats.norm.cdf(1 / np.sqrt(2))
    hits = 0
    for _ in range(200):
        found = auroc(rng.normal(1, 1, 30), rng.normal(0, 1, 30))
        hits += found.low <= truth <= found.high
    assert 180 <= hits <= 199


def test_a_perfect_area_of_few_samples_is_not_certain():
    found = auroc(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    assert found.value == found.high == 1
    assert 0.3 < found.low < 0.8
    turned = auroc(np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0]))
    assert (turned.low, turned.high) == pytest.approx((0.0, 1 - found.low), abs=1e-6)


def test_true_positives_at_one_percent():
    negative = np.arange(200.0)  # two of them may be above: the threshold is 197
    assert true_positives(np.array([197.0, 197.5, 300.0, 0.0]), negative).value == 0.5
    few = np.arange(50.0)  # none may
    assert true_positives(np.array([49.0, 50.0]), few).value == 0.5


def test_shares_have_the_interval_of_clopper_and_pearson():
    expected = stats.binomtest(3, 20).proportion_ci(method="exact")
    assert share(3, 20)[1:] == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert share(0, 20).low == 0
    assert share(20, 20).high == 1


def test_a_bootstrap_of_groups_is_wider_than_one_of_rows():
    rng = np.random.default_rng(2)
    groups = [np.full(10, value) for value in rng.normal(size=8)]
    by_group = resampled(groups, lambda rows: float(rows.mean()), np.random.default_rng(0))
    by_row = resampled(
        [row[None] for row in np.concatenate(groups)], lambda r: float(r.mean()), np.random.default_rng(0)
    )
    assert by_group.value == by_row.value
    assert by_group.high - by_group.low > 2 * (by_row.high - by_row.low)
