"""Secure sums in a simulation: the sum is the plain fixed-point sum to the bit on every engine, whoever drops out or cannot take part."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor import FedTailorError, Simulation
from fedtailor.engines import Work
from fedtailor.learning.mixing import Payload
from fedtailor.methods import methods
from fedtailor.nets.mlp import MLP
from fedtailor.privacy.secure_sum.ring import FixedPoint, total

NET = MLP(hidden=(6,))
SETTINGS = {"rounds": 2, "batch": 4, "lr": 0.1, "seed": 3}
BODY = {"body": "secure-sum"}


def simulation(
    federation, method: str = "fedrep", privacy: dict[str, Any] | None = BODY, **settings: Any
) -> Simulation:
    return Simulation(federation, method, NET, **{"engine": "inline", "privacy": privacy, **SETTINGS, **settings})


def trained(run: Simulation, name: str) -> dict[int, torch.Tensor]:
    """What the clients of a plain run send in its first round."""
    run.step()
    return {i: up[name] for i, up in run.traffic.up.items()}


@pytest.mark.parametrize("method", ["fedrep", "fedbabu"])
def test_the_mean_is_that_of_the_plain_fixed_point_sum_to_the_bit(federation, method):
    """Σ nᵢwᵢ / Σ nᵢ for FedRep, by clients for FedBABU; the vectors are those that a run without the rule sends."""
    vectors = trained(simulation(federation, method, None), "body")
    sizes = {i: len(federation.clients[i].train) if method == "fedrep" else 1 for i in vectors}
    form = FixedPoint(1024.0, max(sizes.values()), 4)
    plain = form.decode(total([form.encode(v, sizes[i]) for i, v in vectors.items()]), sum(sizes.values())).float()
    run = simulation(federation, method)
    run.step()
    assert torch.equal(run.server.state["body"], plain)
    exact = sum(v.double() * sizes[i] for i, v in vectors.items()) / sum(sizes.values())
    assert (run.server.state["body"].double() - exact).abs().max() <= 2.0**-form.fraction + 1e-7


def test_the_server_sees_masked_entries_only(federation):
    run = simulation(federation)
    run.step()
    bodies = trained(simulation(federation, privacy=None), "body")
    for client, up in run.traffic.up.items():
        assert set(up) == {"body", "secure-sum.weight"}
        assert up["body"].dtype == torch.int64
        assert up["body"].shape == bodies[client].shape
    high = torch.cat([up["body"] for up in run.traffic.up.values()]).abs().double().mean() / 2.0**62
    assert 0.8 < high < 1.2  # of uniform numbers; a value of 1 would be far below
    down = {entry.name for entry in run.ledger.last if entry.direction == "down"}
    assert {"body", "secure-sum.keys", "secure-sum.sealed", "secure-sum.survivors"} <= down


def test_clients_that_drop_out_are_not_in_the_mean(federation):
    kept = {"dropout": 0.3, "seed": 5}
    plain, secure = (
        simulation(federation, privacy=None, **kept),
        simulation(federation, **kept, privacy=BODY | {"threshold": 0.5}),
    )
    for _ in range(2):
        (before, after) = (run.step() for run in (plain, secure))
        assert before["replied"] == after["replied"]
    assert after["replied"] < after["picked"]
    torch.testing.assert_close(plain.server.state["body"], secure.server.state["body"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_other_engines_give_the_same_bits(federation, engine):
    settings = {"join": 0.75, "method": "fedavg", "privacy": {"model": "secure-sum"}}
    inline = simulation(federation, **settings).run()
    with simulation(federation, **settings, engine=engine, workers=2).run() as other:
        assert torch.equal(inline.server.state["model"], other.server.state["model"])
        last = [r.traffic.up[max(r.traffic.up)]["model"] for r in (inline, other)]
        assert torch.equal(*last)  # masks come from named streams
        assert inline.metrics[-1]["bytes_up"] == other.metrics[-1]["bytes_up"]


def test_below_the_threshold_the_round_is_lost_and_the_run_goes_on(federation, caplog):
    run = simulation(federation, dropout=0.9, rounds=3, seed=4)
    before = run.server.state["body"].clone()
    with caplog.at_level(logging.WARNING, "fedtailor"):
        run.run()
    assert [r["replied"] for r in run.metrics] == [0, 0, 0]
    assert [r["sum_lost"] for r in run.metrics] == [1, 1, 1]
    assert torch.equal(run.server.state["body"], before)
    assert (
        "sent a masked vector, and 3 are needed of 4. The server keeps its state, and the run goes on." in caplog.text
    )


def test_a_client_whose_values_do_not_fit_adds_nothing_and_says_so(federation, caplog):
    run = simulation(federation, "fedavg", {"model": "secure-sum", "bound": 5.0, "threshold": 0.5}, rounds=1)
    fit = type(run.method).fit

    class Exploding(type(run.method)):  # type: ignore[misc]
        def fit(self, client, payload: Payload) -> Payload:
            up = fit(self, client, payload)
            return {"model": up["model"] + 1e6} if client.id == 2 else up

    run.worker.method = Exploding()
    with caplog.at_level(logging.WARNING, "fedtailor"):
        record = run.step()
    assert (record["replied"], record["rejected"]) == (3, 1)
    assert (
        "nothing is added to the secure sum: 'model': it has values of size 1e+06, and a secure sum takes them up to 5"
        in caplog.text
    )
    assert "the answer of client 2 is left out: round 1: it adds nothing to the secure sum" in caplog.text
    assert run.server.state["model"].abs().max() < 5


def test_a_client_whose_shares_do_not_fit_loses_one_round_and_is_left_out(federation, caplog):
    run = simulation(federation, rounds=2, privacy=BODY | {"threshold": 0.5})
    call = run.engine.call

    def spoilt(work: Work, round: int, clients: Any, send: Any) -> Any:
        outcomes = call(work, round, clients, send)
        if work is Work.SHARE and 1 in outcomes:
            outcomes[1].up["seed"] ^= 1
        return outcomes

    run.engine.call = spoilt  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "fedtailor"):
        run.run()
    assert "The secure sum of round 1 is lost: the shares that client 1 dealt do not fit." in caplog.text
    assert [(r["replied"], r.get("sum_lost", 0)) for r in run.metrics] == [(0, 1), (3, 0)]


def test_a_personal_model_scored_after_training_is_made_of_what_was_trained(federation):
    """FedAFK's model of the last round has the client's own body, which the server only saw masked."""
    plain, secure = (
        simulation(federation, "fedafk", None, rounds=1).run(),
        simulation(federation, "fedafk", rounds=1).run(),
    )
    for i in range(4):
        for a, b in zip(plain.personal(i).parameters(), secure.personal(i).parameters(), strict=True):
            assert torch.equal(a, b)


def test_plain_entries_travel_beside_summed_ones(federation):
    privacy = {"body": "secure-sum", "head": "plain"}
    plain, secure = (simulation(federation, "fedah", p, rounds=1).run() for p in (None, privacy))
    assert torch.equal(plain.server.state["head"], secure.server.state["head"])
    torch.testing.assert_close(plain.server.state["body"], secure.server.state["body"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"join": 0.25}, "needs at least 2 clients in a round, and this run picks 1. Raise join or clients"),
        ({"privacy": BODY | {"threshold": 0.4}}, "threshold"),
        ({"privacy": {"body": "plain", "bound": 2.0}}, "privacy.bound needs an entry with the rule secure-sum"),
        (
            {"privacy": {"body": "secure-sum+robust(median)"}},
            "a robust mean looks at single replies, which secure-sum hides",
        ),
    ],
)
def test_what_cannot_work_is_refused_beforehand(federation, settings, reason):
    with pytest.raises(FedTailorError, match=reason):
        simulation(federation, **settings)


def test_a_sum_that_could_overflow_is_refused_beforehand(federation, monkeypatch):
    monkeypatch.setattr("fedtailor.privacy.secure_sum.ring.COARSEST", 40)
    simulation(federation, privacy=BODY | {"bound": 10.0})
    with pytest.raises(FedTailorError, match=r"over 4 clients of values up to 1e\+08 times 20 would leave 30 bits"):
        simulation(federation, privacy=BODY | {"bound": 1e8})


@pytest.mark.parametrize(
    ("name", "entry"), [("fedamp", "model"), ("fedfomo", "model"), ("fedsimsup", "model"), ("fedproto", "means")]
)
def test_methods_that_need_individuals_are_refused_by_name(federation, name, entry):
    rules = {e: "secure-sum" if e == entry else "plain" for e in methods.classes[name].up}
    with pytest.raises(
        FedTailorError, match=rf"privacy.{entry} = secure-sum is for an entry .* but {name} uses each client's {entry}"
    ):
        simulation(federation, name, rules)


def test_methods_that_weigh_clients_by_what_they_send_are_refused(federation):
    with pytest.raises(
        FedTailorError, match="fedas weighs clients by what each of them sends, which a secure sum hides"
    ):
        simulation(federation, "fedas", {"body": "secure-sum", "fisher": "plain"})


def test_masked_entries_of_one_client_are_uniform_over_rounds(federation):
    """χ² over the bytes that the server sees of client 0 in 40 rounds: 255 degrees of freedom."""
    run = simulation(federation, rounds=40, epochs=0)
    seen = b"".join(run.traffic.up[0]["body"].numpy().tobytes() for _ in run)
    counts = np.bincount(np.frombuffer(seen, np.uint8), minlength=256)
    expected = len(seen) / 256
    assert 160 < ((counts - expected) ** 2 / expected).sum() < 360
