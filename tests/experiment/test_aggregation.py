"""What one client's reply can do to the others: nothing, on any engine; and that a method's own mistake is still seen."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedtailor import Federation, Simulation
from fedtailor.learning import weighted_mean
from fedtailor.methods.fedamp import FedAMP
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))


@dataclass(frozen=True)
class Spoiling(FedAvg):
    """FedAvg in which client 2 adds what it likes to its update from round 2 on."""

    add: float = 0.0

    def fit(self, client, payload):
        up = super().fit(client, payload)
        return {"model": up["model"] + self.add} if client.id == 2 and client.round > 1 else up


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize("add", [1e6, float("nan"), float("inf"), -1e30])
def test_a_spoilt_reply_is_left_out_told_once_and_counted(federation, caplog, engine, add):
    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, Spoiling(add=add), NET, rounds=4, lr=0.1, engine=engine, workers=2).run()
    run.close()
    assert [r["replied"] for r in run.metrics] == [4, 3, 3, 3]
    assert [r.get("rejected") for r in run.metrics] == [None, 1, 1, 1]
    assert [r["bytes_up"] for r in run.metrics] == [run.metrics[0]["bytes_up"]] * 4  # it did travel
    first, last = lines(caplog)
    assert first.startswith("the answer of client 2 is left out: round 2: its 'model' ")
    assert last == "Answers left out in all: of client 2 in 3 rounds."
    used = [i for i in range(4) if i != 2]
    sizes = torch.tensor([len(federation.clients[i].train) for i in used], dtype=torch.float64)
    ups = torch.stack([run.traffic.up[i]["model"] for i in used]).double()
    expected = (sizes / sizes.sum()) @ ups
    torch.testing.assert_close(run.server.state["model"].double(), expected, rtol=0, atol=1e-6)


def test_without_a_guard_only_what_is_not_finite_is_left_out(federation):
    for add, replied in ((1e6, 4), (float("nan"), 3)):
        run = Simulation(federation, Spoiling(add=add), NET, rounds=2, lr=0.1, guard=0.0).run()
        assert run.metrics[-1]["replied"] == replied


def test_a_run_with_a_reply_left_out_resumes_to_the_same_numbers(federation):
    whole, begun, resumed = (
        Simulation(federation, Spoiling(add=1e6), NET, rounds=4, lr=0.1, engine="inline") for _ in range(3)
    )
    whole.run()
    for _ in range(2):
        begun.step()
    resumed.restore(2, begun.server.state, begun.engine.states(), begun.metrics)
    resumed.run()
    assert torch.equal(resumed.server.state["model"], whole.server.state["model"])


@dataclass(frozen=True)
class Breaking(FedAvg):
    """A server that cannot cope with what one client, or anybody, sends: it fails, or its state is spoilt."""

    how: str = "fail"
    whom: tuple[int, ...] = (1,)

    def aggregate(self, server, replies):
        server.state["model"] = weighted_mean(replies, "model")
        met = [r.client for r in replies if r.client in self.whom]
        if met and self.how == "fail":
            raise ValueError("this cannot be")
        if met and self.how == "spoil":
            server.state["model"] = server.state["model"] / 0


@pytest.mark.parametrize("how", ["fail", "spoil"])
def test_a_reply_that_the_server_cannot_use_is_found_and_the_others_are_used(federation, caplog, how):
    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, Breaking(how=how), NET, rounds=2, lr=0.1, engine="inline").run()
    assert [r["replied"] for r in run.metrics] == [3, 3]
    said = {"fail": "the server cannot use it (ValueError: this", "spoil": "with it the server's 'model' is not finite"}
    assert lines(caplog)[0].startswith(f"the answer of client 1 is left out: round 1: {said[how]}")
    assert list(run.outcomes) == [0, 2, 3]
    assert torch.isfinite(run.server.state["model"]).all()
    assert not torch.equal(run.server.state["model"], run.server.net().all.vector)


def test_a_mistake_of_the_method_is_raised_as_it_is(federation):
    with pytest.raises(ValueError, match="this cannot be"):
        Simulation(federation, Breaking(whom=(0, 1, 2, 3)), NET, rounds=1, engine="inline").run()
    alone = Federation.from_clients([(c.train.x, c.train.y) for c in federation.clients[:1]])
    with pytest.raises(ValueError, match="this cannot be"):
        Simulation(alone, Breaking(whom=(0,)), NET, rounds=1, engine="inline").run()


def test_a_state_that_everybody_spoils_stays_as_it_was(federation, caplog):
    method = Breaking(how="spoil", whom=(0, 1, 2, 3))
    with caplog.at_level(logging.WARNING):
        run = Simulation(federation, method, NET, rounds=3, engine="inline").run()
    assert torch.equal(run.server.state["model"], run.server.net().all.vector)
    assert [r["replied"] for r in run.metrics] == [0, 0, 0]
    assert len(caplog.records) == 2  # the first time, and a count


@dataclass(frozen=True)
class InPlace(FedAMP):
    """FedAMP whose server fails after it has written into its tensors."""

    def aggregate(self, server, replies):
        super().aggregate(server, replies)
        if any(r.client == 1 for r in replies):
            raise ValueError("too late")


def test_what_a_server_wrote_in_place_is_not_gathered_twice(federation):
    with pytest.raises(ValueError, match="too late"):  # there is no copy to go back to
        Simulation(federation, InPlace(), NET, rounds=1, engine="inline").run()


def federation_with(scale: float) -> Federation:
    """Ten clients, the last of which has its features in another unit."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 6)) * 2
    parts = []
    for k in range(10):
        y = rng.choice(3, size=30, p=np.roll([0.6, 0.3, 0.1], k))
        x = (centres[y] + rng.normal(size=(30, 6))).astype(np.float32) * np.float32(scale if k == 9 else 1)
        parts.append((x[:20], y[:20], x[20:], y[20:]))
    return Federation.from_clients(parts)


@pytest.mark.parametrize(
    "name", ["fedavg", "pgfedsplit", "fedah", "fedafk", "ditto", "pfedfda", "fedamp", "fedproto", "fedpac"]
)
@pytest.mark.parametrize("join", [1.0, 0.2])
def test_nine_clients_learn_although_the_tenth_has_broken_features(name, join):
    def accuracy(scale: float) -> float:
        settings = {"rounds": 6, "lr": 0.1, "join": join, "engine": "inline", "eval_every": 6}
        run = Simulation(federation_with(scale), name, NET, **settings).run()
        assert all(torch.isfinite(t).all() for t in run.server.state.values())
        return float(np.mean([run.scores[i].accuracy for i in range(9)]))

    assert accuracy(1e30) > accuracy(1.0) - 0.1
