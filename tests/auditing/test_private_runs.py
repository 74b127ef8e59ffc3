"""Client-level differential privacy, audited: the canaries' bound stays below ε, and what leaks falls."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedtailor.auditing.client_canaries import DELTA, client_canaries
from fedtailor.auditing.labels import label_inference
from fedtailor.auditing.views import OTHERS, SERVER

ROUNDS = 3
PRIVATE = {"privacy.model": "dp", "privacy.clip": 0.5, "rounds": ROUNDS}


def epsilon_of(noise: float) -> float:
    """The ε of Gaussian mechanisms by the formula of Balle and Wang (2018): δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)."""
    mu = math.sqrt(ROUNDS) / noise

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - DELTA

    return float(brentq(excess, 0, 100))


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_the_bound_stays_below_epsilon(subject_of, noise):
    bounds = []
    for seed in range(3):
        finding = client_canaries(subject_of("fedavg", seed=seed, run=False, **PRIVATE, **{"privacy.noise": noise}))
        assert finding.promised == pytest.approx(epsilon_of(noise), rel=1e-3)
        assert not finding.broken
        bounds.append(finding.score)
    assert 0 < max(bounds) < epsilon_of(noise)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_the_bound_stays_below_epsilon_in_twenty_runs(subject_of, noise):
    for seed in range(20):
        subject = subject_of("fedavg", seed=seed, run=False, **PRIVATE, **{"privacy.noise": noise})
        assert client_canaries(subject).score < epsilon_of(noise)


def test_a_broken_mechanism_is_caught(subject_of):
    """Noise that is a tenth of what is accounted for: the bound refutes the promise."""
    subject = subject_of("fedavg", seed=7, run=False, **PRIVATE, **{"privacy.noise": 10.0})
    dp = subject.simulation.dp
    dp.normal = type("Less", (), {"__call__": lambda self, *args: 0.1 * dp_normal(*args), "repeated": 0})()
    finding = client_canaries(subject)
    assert finding.broken
    assert "DOES NOT HOLD" in finding.verdict


def dp_normal(round, purpose, total):
    from fedtailor.privacy.noise import NamedNoise

    return NamedNoise(7)(round, purpose, total)


def test_labels_leak_to_the_server_but_not_through_the_noise(subject_of):
    subject = subject_of("fedavg", **PRIVATE, **{"privacy.noise": 3.0})
    views = {view.who: view for view in subject.views}
    assert views[OTHERS].clip == 0.5
    assert views[OTHERS].noise == 3.0
    server, others = (label_inference(subject, views[who], "model") for who in (SERVER, OTHERS))
    assert server.leaks
    assert not others.leaks


@pytest.mark.parametrize("rule", ["dp+secure-sum", "secure-sum"])
def test_noise_inside_a_secure_sum_is_attacked_as_the_sum_shows_it(subject_of, rule):
    noised = {"privacy.noise": 3.0, "privacy.clip": 0.5} if rule.startswith("dp") else {}
    subject = subject_of("fedavg", run=False, rounds=ROUNDS, **{"privacy.model": rule}, **noised)
    (view,) = subject.views
    assert (view.who, view.entries, view.noise) == (OTHERS, ("model",), 3.0 if noised else 0.0)
    finding = client_canaries(subject)
    assert not finding.broken
    if noised:
        assert finding.promised == pytest.approx(epsilon_of(3.0), rel=1e-3)
        assert finding.score < finding.promised
    else:
        assert finding.promised is None


def test_a_robust_mean_is_audited_like_a_plain_one(subject_of):
    subject = subject_of("fedavg", run=False, rounds=1, robust="median")
    assert [view.who for view in subject.views] == [SERVER]
    assert client_canaries(subject).promised is None
