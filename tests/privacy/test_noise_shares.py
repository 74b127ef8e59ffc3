"""Differential privacy inside a secure sum: the noise of every sum that can be unmasked, and the plain sum without noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fedtailor as ft
from fedtailor import FedTailorError, Simulation
from fedtailor.nets.mlp import MLP
from fedtailor.privacy.accounting import Accountant, Sampling
from fedtailor.privacy.client_dp import clipped_norm
from fedtailor.privacy.noise_shares import LARGEST, NamedShares, NoiseShares
from fedtailor.privacy.rules import DPOptions
from fedtailor.privacy.secure_sum.ring import FixedPoint, total
from fedtailor.privacy.secure_sum.terms import needed

pytest.importorskip("dp_accounting")

CLIP, NOISE = 0.5, 1.7
NET = MLP(hidden=(6,))
BODY = {"body": "dp+secure-sum", "clip": CLIP}
SETTINGS = {"rounds": 2, "batch": 4, "lr": 0.1, "seed": 3, "engine": "inline"}


def simulation(federation, method: str = "fedrep", privacy: dict[str, Any] | None = None, **settings: Any):
    return Simulation(federation, method, NET, privacy=privacy, **{**SETTINGS, **settings})


def shares(noise: float = NOISE) -> NoiseShares:
    return NoiseShares(DPOptions(noise=noise, clip=CLIP), 2, NamedShares(0))


def test_without_noise_the_mean_is_that_of_the_plain_fixed_point_sum_of_clipped_changes(federation):
    """base + Σ clipped changes / 4, with equal weights, to the bit."""
    plain = simulation(federation, lr=0.5)
    base = plain.server.state["body"]
    plain.step()
    changes = {i: up["body"].double() - base.double() for i, up in plain.traffic.up.items()}
    form = FixedPoint(CLIP, 1, 4)
    clipped = [c * clipped_norm({"body": c}, CLIP)[1] for c in changes.values()]
    assert any(c.norm() < 0.99 * whole.norm() for c, whole in zip(clipped, changes.values(), strict=True))
    mean = form.decode(total([form.encode(c) for c in clipped]), 4)
    private = simulation(federation, privacy={**BODY, "noise": 0.0}, lr=0.5)
    private.step()
    assert torch.equal(private.server.state["body"], (base.double() + mean).float())


@pytest.mark.parametrize("gone", [0, 1])
def test_every_sum_that_can_be_unmasked_has_noise_enough_without_any_one_share(gone):
    """The variance of the sum of shares: (z·clip)² is reached by t − 1 of them, and exceeded by all that are there."""
    clients, size = 6, 40_000
    t = needed(2 / 3, clients)
    assert t == 5
    own, zero = shares(), {"a": torch.zeros(size)}
    noise = [own.noised(i, 1, zero, zero, ["a"], t)["a"] for i in range(clients)]
    least = (NOISE * CLIP) ** 2
    assert sum(noise[: t - 1]).var().item() == pytest.approx(least, rel=0.03)
    there = clients - gone
    assert sum(noise[:there]).var().item() == pytest.approx(least * there / (t - 1), rel=0.03)
    assert abs(torch.corrcoef(torch.stack(noise)).fill_diagonal_(0)).max() < 0.03
    assert max(n.abs().max().item() for n in noise) <= own.bound(t) == CLIP + LARGEST * own.deviation(t)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e30, math.nan, math.inf])
def test_one_client_moves_the_sum_by_at_most_the_clip(value):
    sent = {"a": torch.ones(3)}
    moved = shares(noise=0.0).noised(
        0, 1, {"a": torch.full((3,), value), "b": torch.tensor([0.1])}, sent, ["a", "b"], 2
    )
    assert math.hypot(*(t.norm().item() for t in moved.values())) <= CLIP * (1 + 1e-9)
    if not math.isfinite(value):
        assert not any(t.any() for t in moved.values())


def test_dropouts_do_not_weaken_the_noise(federation):
    """In rounds with and without dropouts the mean's noise is at least that which is accounted for; the denominator stays."""
    still = {"epochs": 0, "rounds": 60, "dropout": 0.2, "seed": 5}
    run = simulation(
        federation, "fedavg", {"model": "dp+secure-sum", "clip": CLIP, "noise": NOISE, "threshold": 0.5}, **still
    )
    moved: dict[int, list[torch.Tensor]] = {3: [], 4: []}
    before = run.server.state["model"]
    for record in run:
        if record["replied"] in moved:
            moved[record["replied"]].append(run.server.state["model"] - before)
        before = run.server.state["model"]
    t = needed(0.5, 4)
    for there, noise in moved.items():
        assert len(noise) > 5
        variance = torch.cat(noise).double().var().item()
        assert variance == pytest.approx((NOISE * CLIP / 4) ** 2 * there / (t - 1), rel=0.1)
    assert "rejected" not in run.metrics[-1]


def test_sampling_is_not_counted_on_as_the_server_knows_who_was_drawn(federation):
    run = simulation(federation, privacy={**BODY, "noise": NOISE, "delta": 1e-3}, join=0.5).run()
    assert [r["picked"] for r in run.metrics] == [2, 2]
    full = Accountant(NOISE, Sampling("poisson", 1.0, 4), 1e-3)
    assert run.metrics[-1]["epsilon"] == full.epsilon(2)
    assert run.metrics[-1]["epsilon_rdp"] == full.rdp_epsilon(2)
    assert run.metrics[-1]["noise_multiplier"] == NOISE


def test_epsilon_is_solved_for_by_each_client_and_by_the_server_alike(federation):
    run = simulation(federation, privacy={**BODY, "epsilon": 4.0, "delta": 1e-3}).run()
    assert run.worker.sums.noise.amount.accountant.noise == run.dp.amount.accountant.noise
    assert 3.9 < run.metrics[-1]["epsilon"] <= 4
    short = {**BODY, "noise": NOISE, "delta": 1e-3, "epsilon": run.dp.amount.accountant.epsilon(1)}
    stopped = simulation(federation, privacy=short, rounds=9).run()
    assert stopped.round == stopped.dp.amount.allowed < 9


@pytest.mark.parametrize("join", [1.0, 0.75])
def test_the_same_bits_on_every_engine_and_after_a_kill(federation, tmp_path, join):
    privacy = {"body": "dp+secure-sum", "head": "dp+secure-sum", "clip": CLIP, "noise": 0.1}
    settings = {
        **SETTINGS,
        "rounds": 3,
        "join": join,
        "net": NET,
        "privacy": privacy,
        "checkpoint_every": 1,
        "callbacks": [],
    }
    whole = ft.run(federation, "fedah", out=tmp_path / "a", **settings)
    spread = ft.run(federation, "fedah", out=tmp_path / "b", **{**settings, "engine": "processes", "workers": 2})
    spread.close()

    def fail(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.run(federation, "fedah", out=tmp_path / "c", **{**settings, "callbacks": [fail]})
    resumed = ft.run(federation, "fedah", out=tmp_path / "c", **settings)
    for other in (spread, resumed):
        for key, value in whole.simulation.server.state.items():
            assert torch.equal(value, other.simulation.server.state[key])


@pytest.mark.parametrize(
    ("method", "privacy", "reason"),
    [
        ("fedah", {"body": "dp+secure-sum", "head": "dp", "noise": 1}, "clipped together is summed together"),
        ("fedah", {"body": "dp+secure-sum", "head": "secure-sum", "noise": 1}, "clipped together is summed together"),
        ("fedrep", {**BODY, "noise": 1, "quantile": 0.5}, "privacy.quantile needs the lengths of changes"),
        ("fedrep", {**BODY, "epsilon": 2}, "needs privacy.delta too"),
        ("fedrep", {**BODY}, "needs an amount"),
        ("fedrep", {"body": "dp+secure-sum+robust(median)", "noise": 1}, "contradicts itself"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(federation, method, privacy, reason):
    with pytest.raises(FedTailorError, match=reason):
        simulation(federation, method, privacy)


def test_noise_that_leaves_no_room_for_the_sum_is_refused(federation):
    with pytest.raises(FedTailorError, match="bits after the binary point"):
        simulation(federation, privacy={**BODY, "noise": 1e12, "clip": 1e3})
