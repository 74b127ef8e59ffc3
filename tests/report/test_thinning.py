"""Thinned curves keep what the eye would look for."""

from __future__ import annotations

import numpy as np

from fedtailor.report.interactive import thinned


def test_short_curves_stay_whole():
    assert thinned(np.zeros((3, 50)), most=50).tolist() == list(range(50))


def test_a_single_spike_the_dip_and_both_ends_survive():
    rng = np.random.default_rng(0)
    curves = rng.normal(size=(3, 2000))
    curves[0, 777], curves[1, 1234], curves[2, 5] = 99, -99, 99
    kept = thinned(curves, most=240)
    assert len(kept) <= 240
    assert {0, 5, 777, 1234, 1999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    for curve in curves:
        assert {curve.argmin(), curve.argmax()} <= set(kept.tolist())
