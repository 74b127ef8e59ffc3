"""Differential privacy of clients: sensitivity, noise, the fixed denominator, and the same bits everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor as ft
from fedtailor import Federation, Simulation
from fedtailor.experiment.sampling import select
from fedtailor.learning import Reply
from fedtailor.learning.running_statistics import keep_variances
from fedtailor.methods import methods
from fedtailor.nets.mlp import MLP
from fedtailor.privacy.accounting import Accountant, Sampling
from fedtailor.privacy.client_dp import Amount, ClientDP
from fedtailor.privacy.noise import NamedNoise, SecretNoise, secret_normal
from fedtailor.privacy.rules import DPOptions

pytest.importorskip("dp_accounting")

CLIP = 0.5
NET = MLP(hidden=(4,))
RUN = {"engine": "inline", "rounds": 3, "join": 0.5, "batch": 4, "seed": 3}
AMOUNT = {"noise": 1.0, "clip": CLIP}
PROTECTED = {  # the entries that each method can protect, and what else it sends
    "fedavg": {"model": "dp"},
    "fedrep": {"body": "dp"},
    "fedah": {"body": "dp", "head": "dp"},
    "ditto": {"model": "dp"},
    "fedbabu": {"body": "dp"},
    "lg-fedavg": {"head": "dp"},
    "tailor": {"model": "dp"},
    "fedas": {"body": "dp", "fisher": "plain"},
    "pfedfda": {"body": "dp", "mixed_means": "dp", "mixed_covariance": "plain"},
    "pgfedsplit": {"body": "dp", "head": "dp", **dict.fromkeys(("alpha", "prototypes", "classes", "squares"), "plain")},
}


class Fixed:
    """A server of which only the round and the state are needed."""

    round = 1

    def __init__(self, **state: torch.Tensor) -> None:
        self.state = state


def dp(names=("a", "b"), noise: float = 0.0, expected: int = 4, normal=None, **options) -> ClientDP:
    accountant = Accountant(noise, Sampling("poisson", 1.0, expected), 1e-3)
    return ClientDP(names, DPOptions(clip=CLIP, **options), Amount(accountant, 10), normal or NamedNoise(0))


def replies(*pairs: tuple[float, float]) -> list[Reply]:
    """Replies with entries a (three numbers) and b (two)."""
    return [
        Reply(i, 10 * i + 1, {"a": torch.full((3,), a), "b": torch.full((2,), b)}) for i, (a, b) in enumerate(pairs)
    ]


def small_federation(clients: int = 6) -> Federation:
    rng = np.random.default_rng(0)

    def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 3
        return (rng.normal(size=(n, 5)) + y[:, None]).astype(np.float32), y

    return Federation.from_clients([(*samples(8 + k), *samples(4)) for k in range(clients)])


def test_the_mean_by_hand():
    """Two clients, base a = 1, b not sent: the changes (a − 1, b) are clipped together, and divided by four whoever came."""
    base = {"a": torch.ones(3)}
    private = dp()
    found = replies((2.0, 1.0), (1.1, 0.1))
    rest, faults = private.take(Fixed(), found, {0: base, 1: base})
    assert [r.payload for r in rest] == [{}, {}]
    assert faults == {}
    norms = [math.sqrt(3 * 1.0**2 + 2 * 1.0**2), math.sqrt(3 * 0.1**2 + 2 * 0.1**2)]
    factors = [CLIP / norms[0], 1.0]
    a = private.mean(Fixed(), rest, "a", "clients")
    b = private.mean(Fixed(), rest, "b", "samples")
    torch.testing.assert_close(a, torch.full((3,), 1 + (factors[0] * 1.0 + 0.1) / 4))
    torch.testing.assert_close(b, torch.full((2,), (factors[0] * 1.0 + 0.1) / 4))


@pytest.mark.parametrize("value", [0.0, -3.0, 1e30, -1e30, math.nan, math.inf])
@pytest.mark.parametrize("entry", ["a", "b", "both"])
def test_one_client_moves_the_sum_by_at_most_the_clip(value, entry):
    base = {"a": torch.ones(3)}
    rng = torch.Generator().manual_seed(1)
    others = [Reply(i, 1, {"a": torch.randn(3, generator=rng), "b": torch.randn(2, generator=rng)}) for i in range(3)]

    def totals(replies: list[Reply]) -> torch.Tensor:
        private = dp()
        rest, _ = private.take(Fixed(), replies, {reply.client: base for reply in replies})
        return torch.cat([private.total(rest, name) for name in ("a", "b")])

    strange = {"a": torch.ones(3), "b": torch.zeros(2)}
    strange |= {name: torch.full_like(strange[name], value) for name in ("a", "b") if entry in (name, "both")}
    alone = totals(others)
    assert (totals([*others, Reply(3, 1, strange)]) - alone).norm() <= CLIP * (1 + 1e-6)
    assert torch.isfinite(alone).all()
    assert alone.norm() <= 3 * CLIP


def test_a_reply_of_another_shape_or_kind_counts_as_zero():
    private, base = dp(), {"a": torch.ones(3), "b": torch.zeros(2)}
    sound = Reply(0, 1, {"a": torch.ones(3), "b": torch.ones(2)})
    longer = Reply(1, 1, {"a": torch.ones(4), "b": torch.ones(2)})
    whole = Reply(2, 1, {"a": torch.ones(3, dtype=torch.int64), "b": torch.ones(2)})
    rest, faults = private.take(Fixed(), [sound, longer, whole], dict.fromkeys(range(3), base))
    assert [r.client for r in rest] == [0]
    assert set(faults) == {1, 2}


def test_clients_that_are_sent_different_entries_are_refused():
    with pytest.raises(ft.FedTailorError, match="sent different a"):
        dp().take(Fixed(), [], {0: {"a": torch.ones(3)}, 1: {"a": torch.zeros(3)}})


def test_the_noise_has_its_variance_and_is_that_of_its_round():
    z, n, size = 1.7, 4, 200_000
    private = dp(("a",), noise=z, expected=n)
    base = {"a": torch.zeros(size)}
    server = Fixed()
    private.take(server, [Reply(0, 1, dict(base))], {0: base})
    drawn = private.mean(server, [], "a", "clients").double()
    assert drawn.var().item() == pytest.approx((z * CLIP / n) ** 2, rel=0.02)
    assert abs(drawn.mean().item()) < 4 * z * CLIP / n / math.sqrt(size)
    assert torch.equal(drawn, private.mean(server, [], "a", "clients").double())
    server.round = 2
    assert not torch.equal(drawn, private.mean(server, [], "a", "clients").double())


def test_the_clip_adapts_to_the_quantile_and_its_noise_is_accounted():
    """Half the changes are 1 long and half 3: with a quantile of 0.75 the clip has to pass 1, and stays below 3."""
    private = dp(("a",), noise=0.3, expected=200, quantile=0.75)
    server = Fixed()
    lengths = [1.0, 3.0] * 100
    for server.round in range(1, 60):
        sent = {i: {"a": torch.zeros(1)} for i in range(200)}
        private.take(server, [Reply(i, 1, {"a": torch.tensor([n])}) for i, n in enumerate(lengths)], sent)
        private.settle(server)
    assert 1 < private.clip(server) <= 3.6
    count_noise = 0.05 * 200
    assert private.sum_noise**-2 + (2 * count_noise) ** -2 == pytest.approx(0.3**-2)


def test_secret_noise_repeats_for_the_same_sum_alone(tmp_path):
    file, total = tmp_path / "secret.json", torch.arange(5.0, dtype=torch.float64)
    secret = SecretNoise(file)
    first = secret(1, "body", total)
    assert file.stat().st_mode & 0o777 == 0o600
    again = SecretNoise(file)  # after a restart
    assert torch.equal(again(1, "body", total), first)
    assert again.repeated == 0
    assert not torch.equal(again(1, "body", total + 1), first)  # another site replied: another release
    assert again.repeated == 1
    assert not torch.equal(SecretNoise(tmp_path / "other.json")(1, "body", total), first)
    assert again.sampling_seed() == secret.sampling_seed()
    file.chmod(0o644)
    with pytest.raises(ft.FedTailorError, match="chmod 600"):
        SecretNoise(file)
    file.write_text("{}")
    file.chmod(0o600)
    with pytest.raises(ft.FedTailorError, match="damaged"):
        SecretNoise(file)


def test_numbers_from_a_secret_are_standard_normal():
    drawn = secret_normal(b"s" * 32, "1 body", 100_000)
    assert drawn.mean().item() == pytest.approx(0, abs=0.015)
    assert drawn.var().item() == pytest.approx(1, rel=0.02)
    assert (drawn.abs() > 1.96).double().mean().item() == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("name", PROTECTED)
def test_methods_train_with_protected_entries(name):
    options = {"tau": 2} if name == "pgfedsplit" else {}
    privacy = {**PROTECTED[name], **AMOUNT}
    method = methods.build(name, options)
    run = Simulation(small_federation(), method, NET, privacy=privacy, **RUN).run()
    rounds = [r for r in run.metrics if r["phase"] == "round"]
    assert all(math.isfinite(r["loss"]) for r in run.metrics if r["loss"] is not None)
    assert [r["epsilon"] for r in rounds] == sorted(r["epsilon"] for r in rounds)
    assert rounds[-1]["epsilon"] == Accountant(1.0, Sampling("poisson", 0.5, 6), 6**-1.1).epsilon(3)
    assert rounds[-1]["delta"] == pytest.approx(6**-1.1)
    assert "rejected" not in rounds[-1]


def test_without_noise_and_with_a_wide_clip_it_is_the_plain_mean_by_clients():
    """pFedMe averages by clients: with everyone there the private mean is the plain one, up to rounding."""
    settings = {**RUN, "join": 1.0}
    privacy = {"model": "dp", "noise": 0, "clip": 1e6}
    plain = Simulation(small_federation(), "pfedme", NET, **settings).run()
    private = Simulation(small_federation(), "pfedme", NET, privacy=privacy, **settings).run()
    torch.testing.assert_close(private.server.state["model"], plain.server.state["model"])
    assert "epsilon" not in private.metrics[-1]


@pytest.mark.parametrize("settings", [{"server_optimizer": "adam"}, {"server_optimizer": "momentum"}])
def test_server_optimizers_step_towards_the_private_mean(settings):
    run = Simulation(small_federation(), "fedavg", NET, privacy={"model": "dp", **AMOUNT}, **RUN, **settings).run()
    assert any(key.startswith("server_optimizer.model.") for key in run.server.state)
    assert all(math.isfinite(r["loss"]) for r in run.metrics)


def test_a_round_without_participants_publishes_noise():
    run = Simulation(small_federation(), "fedavg", NET, privacy={"model": "dp", **AMOUNT}, **{**RUN, "join": 0.01})
    before = run.server.state["model"]
    record = run.step()
    assert record["picked"] == 0
    moved = run.server.state["model"] - before
    assert moved.double().std().item() == pytest.approx(1.0 * CLIP / (0.01 * 6), rel=0.3)


def test_each_client_is_drawn_by_a_chance_of_its_own():
    protocol = ft.Protocol(join=0.3, seed=1)
    counts = np.array([len(select(protocol, list(range(50)), t, poisson=True).picked) for t in range(400)])
    assert counts.mean() == pytest.approx(15, abs=0.6)
    assert counts.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.25)  # a fixed number would have none


@pytest.mark.parametrize("options", [{}, {"quantile": 0.5}])
def test_the_same_bits_on_every_engine_and_after_a_kill(options, tmp_path):
    privacy = {"body": "dp", "head": "dp", **AMOUNT, **options}
    settings = {**RUN, "rounds": 4, "net": NET, "privacy": privacy, "checkpoint_every": 1}
    whole = ft.run(small_federation(), "fedah", out=tmp_path / "a", callbacks=[], **settings)
    spread = ft.run(
        small_federation(),
        "fedah",
        out=tmp_path / "b",
        callbacks=[],
        **{**settings, "engine": "processes", "workers": 2},
    )
    spread.close()

    def fail(record: dict) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.run(small_federation(), "fedah", out=tmp_path / "c", callbacks=[fail], **settings)
    resumed = ft.run(small_federation(), "fedah", out=tmp_path / "c", callbacks=[], **settings)
    for other in (spread, resumed):
        for key, value in whole.simulation.server.state.items():
            assert torch.equal(value, other.simulation.server.state[key])
        assert [r["epsilon"] for r in other.metrics] == [r["epsilon"] for r in whole.metrics]


def test_a_run_that_would_overspend_stops(caplog):
    accountant = Accountant(1.0, Sampling("poisson", 0.5, 6), 6**-1.1)
    privacy = {"model": "dp", **AMOUNT, "epsilon": accountant.epsilon(2)}
    run = Simulation(small_federation(), "fedavg", NET, privacy=privacy, **RUN).run()
    assert run.round == 2
    assert run.metrics[-1]["epsilon"] <= privacy["epsilon"]
    assert "another would spend more" in caplog.text
    with pytest.raises(ft.FedTailorError, match="in one round"):
        Simulation(small_federation(), "fedavg", NET, privacy={**privacy, "epsilon": 1e-3}, **RUN)


def test_running_variances_stay_positive():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    privacy = {"model": "dp", "noise": 50.0, "clip": 1.0}
    settings = {**RUN, "rounds": 1, "join": 1.0, "bn_buffers": "average"}
    run = Simulation(small_federation(), "fedavg", net, privacy=privacy, **settings)
    run.step()
    named = run.server.net().all.named(run.server.state["model"])
    variances = torch.cat([t.flatten() for key, t in named.items() if key.endswith("running_var")])
    assert len(variances)
    assert (variances > 0).all()
    keep_variances(None, torch.ones(2), None)  # an entry that is no part of the net is left alone


def test_privacy_that_cannot_be_accounted_is_refused():
    with pytest.raises(ft.FedTailorError, match="one share"):
        Simulation(small_federation(), "fedavg", NET, privacy={"model": "dp", **AMOUNT}, **{**RUN, "join": (0.1, 0.5)})
