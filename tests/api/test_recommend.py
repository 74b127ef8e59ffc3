from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedtailor as ft
from fedtailor.api.recommend import Advice, Gain, decide


def shared(samples: int, clients: int = 12) -> ft.Federation:
    """Clients with the same rule, which few samples do not show: together they know it."""
    rng = np.random.default_rng(0)
    rule, parts = rng.normal(size=(20, 3)), []
    for _ in range(clients):
        x = rng.normal(size=(samples + 40, 20)).astype(np.float32)
        y = (x @ rule).argmax(1)
        parts.append((x[:samples], y[:samples], x[samples:], y[samples:]))
    return ft.Federation.from_clients(parts)


def opposed(samples: int, clients: int = 6) -> ft.Federation:
    """Clients with many samples and opposite rules: together they know nothing."""
    rng = np.random.default_rng(0)
    rule, parts = rng.normal(size=(5,)), []
    for k in range(clients):
        x = rng.normal(size=(samples, 5)).astype(np.float32)
        y = ((x @ rule) * (-1) ** k > 0).astype(int)
        parts.append((x, y, x[:20], y[:20]))
    return ft.Federation.from_clients(parts)


QUICK = {"net": "mlp", "rounds": 5, "lr": 0.1, "engine": "inline", "callbacks": [], "minutes": 0.0}
FEW = ("local", "fedavg")


@pytest.fixture(scope="module")
def advised(tmp_path_factory) -> tuple[Advice, Path]:
    """Advice for clients that gain, and its folder."""
    out = tmp_path_factory.mktemp("advised")
    return ft.recommend(shared(20), FEW, out=out, **QUICK), out


def test_clients_that_gain_are_told_to_federate(advised):
    advice, _ = advised
    assert advice.verdict == "federate"
    assert advice.method == advice.config.method.name == "fedavg"
    assert advice.over_alone.low > 0
    assert advice.over_average.mean == 0  # it is FedAvg
    assert "Federate with fedavg" in repr(advice)


def test_clients_that_do_not_gain_are_told_to_stay_alone(tmp_path):
    advice = ft.recommend(opposed(100), FEW, out=tmp_path, **QUICK)
    assert advice.verdict == "alone"
    assert advice.config.method.name == "local"
    assert len(advice.losing) == 6
    assert "Do not federate" in repr(advice)


def test_the_decision():
    assert decide(Gain.of(np.array([0.02, 0.03, 0.025])), 0.005) == "federate"
    assert decide(Gain.of(np.array([0.2, -0.1, 0.05])), 0.005) == "unclear"
    assert decide(Gain.of(np.array([0.004, 0.004, 0.004])), 0.005) == "alone"  # certain, but not worth it
    assert decide(Gain.of(np.array([-0.1, -0.2, np.nan])), 0.005) == "alone"
    assert decide(Gain.of(np.array([np.nan])), 0.005) == "alone"


def test_the_interval_of_a_gain_by_hand():
    gain = Gain.of(np.array([0.01, 0.03, np.nan]))
    reach = 12.706 * np.std([0.01, 0.03], ddof=1) / np.sqrt(2)  # t of one degree of freedom
    assert (gain.low, gain.mean, gain.high) == pytest.approx((0.02 - reach, 0.02, 0.02 + reach), abs=1e-5)


def test_the_same_call_goes_on_with_what_was_measured(advised):
    first, out = advised
    files = {file: file.stat().st_mtime_ns for file in out.rglob("*.json")}
    assert len([f for f in files if f.name.startswith("gain-")]) == 6  # two methods, three seeds
    again = ft.recommend(shared(20), FEW, out=out, **QUICK)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.json")} == files
    assert again.over_alone.mean == first.over_alone.mean


def test_test_samples_have_no_say(advised, tmp_path):
    one, _ = advised
    spoiled = ft.Federation.from_clients(
        [
            (c.train.x.numpy(), c.train.y.numpy(), c.test.x.numpy(), (c.test.y.numpy() + 1) % 3)
            for c in shared(20).clients
        ]
    )
    other = ft.recommend(spoiled, FEW, out=tmp_path, **QUICK)
    assert one.over_alone.clients == pytest.approx(other.over_alone.clients)
    assert one.scores == other.scores


def test_a_regression_is_advised_by_its_error(tmp_path):
    rng, parts = np.random.default_rng(0), []
    for _ in range(5):
        x = rng.normal(size=(40, 4)).astype(np.float32)
        y = (x.sum(1) + 0.1 * rng.normal(size=40)).astype(np.float32)
        parts.append((x[:12], y[:12], x[12:], y[12:]))
    federation = ft.Federation.from_clients(parts, task="regression")
    advice = ft.recommend(federation, (*FEW, "tailor"), out=tmp_path, **{**QUICK, "lr": 0.02, "rounds": 10})
    assert advice.scores.keys() == {"local", "fedavg"}  # tailor needs classes
    assert advice.metric.name == "rmse"
    assert (advice.over_alone.mean > 0) == (advice.verdict != "alone")


def test_the_command_writes_a_page_with_the_next_command(tmp_path, fedtailor, rendered):
    words = ("data=digits", "data.fraction=0.2", "clients=4", "net=mlp", "rounds=3", "engine=inline")
    said = fedtailor("recommend", "fedper", *words, "--minutes", "0", "--out", tmp_path / "a")
    page = (tmp_path / "a" / "recommendation.md").read_text()
    command = next(line.strip() for line in page.splitlines() if line.strip().startswith("fedtailor run"))
    assert command in said
    assert (tmp_path / "a" / "recommendation.png").stat().st_size > 1000
    fedtailor(*command.split()[1:], "--out", tmp_path / "r")
    known = json.loads((tmp_path / "a" / "gain-local-s1.json").read_text())
    assert len(known["clients"]) == 4
    assert "There is no method" in fedtailor("recommend", "fedrap", *words, "--out", tmp_path / "b", code=2)
