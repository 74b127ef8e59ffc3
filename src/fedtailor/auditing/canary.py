"""A lower bound on ε from canaries: clients that take part or not by a coin, and an attacker who guesses which did.

Whoever can guess the coins of m independent canaries too well refutes a small ε. The bound holds for one run with all canaries in it, at
the stated confidence (Steinke, Nasr and Jagielski, 2023). It never shows that a run is private; it shows that a promise is broken, or
how much is lost at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
LARGEST = 50.0  # ε beyond which no test of this kind reaches


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest chance of so many correct guesses if the run is (ε, δ)-differentially private (Theorem 5.2).

    Without δ a guess is right with chance at most e^ε/(1 + e^ε), whatever the others are.
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, right))
    if not delta or not correct:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    worst = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


def epsilon_bound(
    correct: int, guesses: int, canaries: int, delta: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """The smallest ε that so many correct guesses do not refute at this confidence."""
    level = 1 - confidence

    def excess(epsilon: float) -> float:
        return p_value(correct, guesses, canaries, epsilon, delta) - level

    if excess(0.0) >= 0:
        return 0.0
    if excess(LARGEST) < 0:
        return LARGEST
    return float(optimize.brentq(excess, 0.0, LARGEST))


Release = Callable[[np.ndarray], np.ndarray]  # which canaries take part -> a score per canary from what is released


def one_run(release: Release, canaries: int, rng: np.random.Generator) -> tuple[int, int]:
    """Toss a coin per canary, look at what is released, and guess: return the correct guesses, and how many were made.

    The half of the canaries with the most extreme scores is guessed, a quarter as in and a quarter as out, which is decided before.
    """
    inside = rng.random(canaries) < 0.5
    order = np.argsort(release(inside), kind="stable")
    quarter = max(1, canaries // 4)
    out, taken = order[:quarter], order[-quarter:]
    return int((~inside[out]).sum() + inside[taken].sum()), 2 * quarter
