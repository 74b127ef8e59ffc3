"""The tests behind the table: right pairs, right n, corrected, and none where there is nothing to pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedtailor.analysis.results import read_run
from fedtailor.analysis.significance import Verdict, against, choose_baseline, holm, paired_test, ranked
from fedtailor.experiment.headline import Headline

ACCURACY = Headline()


def read(*paths):
    return [read_run(p) for p in paths]


def test_one_seed_is_paired_over_clients_that_both_tested(make_run):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(size=12).tolist(), rng.uniform(size=12).tolist()
    left, right = read(make_run("a", clients=[None, *a]), make_run("b", clients=[0.5, *b]))
    verdict = paired_test([left], [right], ACCURACY)
    assert (verdict.n, verdict.over) == (12, "clients")
    assert verdict.p == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert paired_test([left], [left], ACCURACY).p == 1.0


def test_several_seeds_are_paired_by_seed_not_by_order(make_run):
    scores = {0: 0.5, 1: 0.6, 2: 0.9}
    left = read(*(make_run(f"a{s}", f"seed={s}", accuracy=[v]) for s, v in scores.items()))
    right = read(*(make_run(f"b{s}", f"seed={s}", accuracy=[scores[s] - 0.1 - 0.01 * s]) for s in (2, 0, 1)))
    verdict = paired_test(left, right, ACCURACY)
    assert (verdict.n, verdict.over) == (3, "seeds")
    assert verdict.p == pytest.approx(stats.ttest_rel([0.5, 0.6, 0.9], [0.4, 0.49, 0.78]).pvalue)


def test_nothing_to_pair_means_no_verdict(make_run):
    base = read(make_run("a"))
    assert paired_test(base, read(make_run("b", "seed=1")), ACCURACY) is None
    assert paired_test(base, read(make_run("c", clients=[0.1, 0.2])), ACCURACY) is None
    assert paired_test(base, read(make_run("d", state="failed")), ACCURACY) is None


def test_holm_by_hand():
    raw = {name: Verdict(p, 9, "clients") for name, p in {"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.9}.items()}
    assert {n: v.p for n, v in holm(raw).items()} == pytest.approx({"b": 0.04, "c": 0.09, "a": 0.09, "d": 0.9})


def test_an_unfinished_run_is_neither_the_best_nor_tested(make_run):
    groups = {
        "lucky": read(make_run("a", accuracy=[0.99], state="interrupted")),
        "good": read(make_run("b", accuracy=[0.8])),
        "poor": read(make_run("c", accuracy=[0.7])),
    }
    assert choose_baseline(groups, ACCURACY) == "good"
    assert choose_baseline(groups, ACCURACY, "poor") == "poor"
    assert set(against(groups, "good", ACCURACY)) == {"poor"}
    assert list(ranked(groups, ACCURACY)) == ["good", "poor", "lucky"]
    assert choose_baseline({"lucky": groups["lucky"]}, ACCURACY) == ""
