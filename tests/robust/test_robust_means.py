"""Robust means against equations written out in float64, and at their breakdown points."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from fedtailor.errors import FedTailorError
from fedtailor.learning import mixing
from fedtailor.robust import Changes, RobustMean, robust_means

RULES = [
    ("norm-bound", {}),
    ("norm-bound", {"bound": 0.5}),
    ("median", {}),
    ("trimmed", {"share": 0.2}),
    ("trimmed", {"share": 0.5}),
    ("geometric-median", {}),
    ("krum", {}),
    ("krum", {"attackers": 2}),
    ("multi-krum", {}),
    ("multi-krum", {"attackers": 2}),
]
COUNTS = (3, 4, 7, 10, 11)


def rule(name: str, options: dict) -> RobustMean:
    return robust_means.build(name, options)


def drawn(n: int, width: int = 17, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What was sent, and n replies to it."""
    rng = np.random.default_rng((seed, n))
    sent = rng.normal(size=width)
    return sent, sent + 0.3 * rng.normal(size=(n, width)) + 0.2 * rng.normal(size=width)


def result(mean: RobustMean, sent: np.ndarray, replies: np.ndarray, dtype: torch.dtype = torch.float32) -> np.ndarray:
    changes = Changes([torch.tensor(reply, dtype=dtype) for reply in replies], torch.tensor(sent, dtype=dtype))
    return mean(changes).double().numpy()


# -- the equations -----------------------------------------------------------------------------------------------------------------


def norm_bound(changes: np.ndarray, bound: float = 1.0) -> np.ndarray:
    norms = [math.sqrt(sum(v * v for v in row)) for row in changes]
    longest = bound * np.median(norms)
    return sum(row * min(1.0, longest / norm) for row, norm in zip(changes, norms, strict=True)) / len(changes)


def trimmed(changes: np.ndarray, share: float) -> np.ndarray:
    n = len(changes)
    k = min(math.ceil(round(share * n, 6)), (n - 1) // 2)
    return np.array([np.mean(sorted(column)[k : n - k]) for column in changes.T])


def krum_order(changes: np.ndarray, attackers: int | None) -> tuple[list[int], int]:
    n = len(changes)
    most = max(0, (n - 3) // 2)
    f = most if attackers is None else min(attackers, most)
    scores = []
    for i in range(n):
        squares = sorted(float(((changes[i] - changes[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(squares[: max(1, n - f - 2)]))
    return sorted(range(n), key=lambda i: scores[i]), f


def reference(name: str, changes: np.ndarray, options: dict) -> np.ndarray:
    if name == "norm-bound":
        return norm_bound(changes, **options)
    if name == "median":
        return np.median(changes, axis=0)
    if name == "trimmed":
        return trimmed(changes, **options)
    order, f = krum_order(changes, options.get("attackers"))
    return changes[order[0]] if name == "krum" else changes[order[: len(changes) - f]].mean(0)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("name", "options"), [case for case in RULES if case[0] != "geometric-median"])
def test_a_rule_is_its_equation(name, options, n, monkeypatch):
    monkeypatch.setattr(mixing, "BLOCK", 5)  # so that it takes several
    sent, replies = drawn(n)
    expected = reference(name, replies - sent, options)
    np.testing.assert_allclose(result(rule(name, options), sent, replies, torch.float64), expected, rtol=1e-12)
    np.testing.assert_allclose(result(rule(name, options), sent, replies), expected, atol=1e-6)


@pytest.mark.parametrize("n", COUNTS)
def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median(n):
    from scipy.optimize import minimize

    sent, replies = drawn(n, width=4)
    changes = replies - sent

    def summed(point: np.ndarray) -> float:
        return np.linalg.norm(changes - point, axis=1).sum()

    best = minimize(summed, changes.mean(0), method="Nelder-Mead", options={"fatol": 1e-12, "xatol": 1e-9})
    found = result(rule("geometric-median", {}), sent, replies, torch.float64)
    assert summed(found) <= best.fun * (1 + 1e-6)
    np.testing.assert_allclose(found, best.x, atol=1e-3)


def test_three_points_have_the_geometric_median_that_geometry_says():
    """An angle of 120° or more is itself the point (Torricelli); of an equilateral triangle it is the centre."""
    blunt = np.array([[0.0, 0.0], [10.0, 1.0], [-10.0, 1.0]])
    even = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    geometric = rule("geometric-median", {})
    np.testing.assert_allclose(result(geometric, np.zeros(2), blunt), [0, 0], atol=0.02)
    np.testing.assert_allclose(result(geometric, np.zeros(2), even), [0.5, math.sqrt(3) / 6], atol=1e-4)


def test_where_most_replies_agree_every_rule_but_the_norm_bound_returns_that():
    sent, same = np.zeros(3), np.array([1.0, -2.0, 0.5])
    replies = np.stack([same] * 6 + [same + 1, same * 3, -same])
    for name in ("median", "geometric-median", "krum"):
        np.testing.assert_allclose(result(rule(name, {}), sent, replies), same, atol=1e-6)
    np.testing.assert_allclose(result(rule("trimmed", {"share": 0.4}), sent, replies), same, atol=1e-6)
    np.testing.assert_allclose(result(rule("multi-krum", {"attackers": 3}), sent, replies), same, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), RULES)
def test_without_change_there_is_none_and_one_reply_is_taken(name, options):
    sent = np.array([1.0, 2.0])
    np.testing.assert_array_equal(result(rule(name, options), sent, np.stack([sent] * 5)), [0, 0])
    expected = [0.5 * options.get("bound", 1), 0]
    np.testing.assert_allclose(result(rule(name, options), sent, np.array([[1.5, 2.0]])), expected)


# -- breakdown points --------------------------------------------------------------------------------------------------------------

HOSTILE = ("1e30", "-1e30", "apart", "times -10", "as one", "3e38")


def hostile(kind: str, honest: np.ndarray, sent: np.ndarray, count: int) -> np.ndarray:
    change = honest.mean(0) - sent
    rows = {
        "1e30": np.full_like(honest[:count], 1e30),
        "-1e30": np.full_like(honest[:count], -1e30),
        "apart": np.sign(np.random.default_rng(1).normal(size=(count, honest.shape[1]))) * 1e30,
        "times -10": np.tile(sent - 10 * change, (count, 1)),
        "as one": np.tile(sent + 1e6 * change, (count, 1)),
        "3e38": np.full_like(honest[:count], 3e38),
    }
    return rows[kind]


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("name", "options"), RULES)
def test_up_to_its_breakdown_point_a_rule_stays_with_the_honest(name, options, n):
    """The distance to the honest mean is bounded by how far the honest are apart and how far they go, whatever the hostile send."""
    mean = rule(name, options)
    count = mean.tolerates(n)
    sent, replies = drawn(n)
    honest = replies[count:]
    centre = honest.mean(0) - sent
    apart = max((np.linalg.norm(a - b) for a, b in combinations(honest, 2)), default=0.0)
    reach = np.linalg.norm(honest - sent, axis=1).max()
    for kind in HOSTILE if count else ():
        found = result(mean, sent, np.concatenate([hostile(kind, honest, sent, count), honest]))
        assert np.linalg.norm(found - centre) <= 2 * (apart + reach), kind
        assert np.isfinite(found).all()


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("name", "options"), RULES)
def test_more_than_its_breakdown_point_breaks_a_rule(name, options, n):
    """One more breaks it; to be chosen by Krum, hostile replies must all be each other's n − f − 2 nearest."""
    mean = rule(name, options)
    sent, replies = drawn(n)
    count = n - mean.tolerates(n) - 1 if name == "krum" else mean.tolerates(n) + 1
    found = result(mean, sent, np.concatenate([np.full((count, len(sent)), 1e9), replies[count:]]))
    assert np.linalg.norm(found) > 1e7


def test_what_each_rule_tolerates():
    expected = {"norm-bound": 4, "median": 4, "trimmed": 2, "geometric-median": 4, "krum": 3, "multi-krum": 3}
    assert {name: rule(name, {}).tolerates(10) for name in robust_means.classes} == expected
    assert [rule("trimmed", {"share": 0.07}).tolerates(n) for n in (100, 101, 3, 2, 1)] == [7, 8, 1, 0, 0]
    assert [rule("krum", {"attackers": 5}).tolerates(n) for n in (13, 12, 2)] == [5, 4, 0]


def test_options_are_checked_and_names_have_aliases():
    with pytest.raises(FedTailorError, match=r"robust\.share = 0\.7 is not allowed: expected float > 0 and ≤ 0\.5"):
        rule("trimmed", {"share": 0.7})
    with pytest.raises(FedTailorError, match=r"There is no robust 'krumm'\. Did you mean 'krum'"):
        rule("krumm", {})
    assert robust_means.find("Trimmed_mean") is robust_means.find("trimmed")


def test_an_entry_of_any_shape_keeps_it():
    sent = torch.zeros(2, 3)
    replies = [torch.full((2, 3), float(k)) for k in range(5)]
    for name in robust_means.classes:
        assert rule(name, {})(Changes(replies, sent)).shape == (2, 3)


def test_hardly_more_memory_than_a_block_is_used(monkeypatch):
    """The rows of all replies are never stacked: only blocks of them are."""
    widths: list[int] = []
    stack = torch.stack

    def recording(tensors, *args):
        widths.append(tensors[0].numel())
        return stack(tensors, *args)

    monkeypatch.setattr(torch, "stack", recording)
    sent, replies = drawn(7, width=10_000)
    for name, options in RULES:
        result(rule(name, options), sent, replies)
    assert max(widths) == mixing.BLOCK
