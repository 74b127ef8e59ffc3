"""APFL: the mixture's gradients by finite differences, rounds by hand, and the ends of α."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.experiment.onboarding import onboard
from fedtailor.methods.apfl import APFL
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}
BATCHED = {**SETTINGS, "dtype": "float32", "batch": 4}


def loss(v, x, y):
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    return F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y)


def gradient(v, x, y):
    v = v.clone().requires_grad_()
    return torch.autograd.grad(loss(v, x, y), v)[0]


@pytest.mark.parametrize("pfllib", [False, True])
def test_three_rounds_by_hand(federation, pfllib):
    simulation = Simulation(federation, APFL(alpha=0.3, pfllib_style=pfllib), NET, rounds=3, epochs=2, **SETTINGS)
    server = simulation.server.state["model"].clone()
    own, alpha = [server.clone() for _ in range(4)], [0.3] * 4
    sizes = [len(c.train) for c in federation.clients]
    for _ in range(3):
        simulation.step()
        sent = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            w, v, a = server, own[i], alpha[i]
            for _ in range(2):
                if pfllib:
                    gw, gv = gradient(w, x, y), gradient(v, x, y)
                    w, v = w - 0.1 * gw, v - 0.1 * gv
                    slope = float((v - w) @ (a * gv + (1 - a) * gw)) + 0.02 * a
                else:
                    mixture = gradient(a * v + (1 - a) * w, x, y)
                    slope = float((v - w) @ mixture)
                    w, v = w - 0.1 * gradient(w, x, y), v - 0.1 * a * mixture
                a = min(1.0, max(0.0, a - 0.1 * slope))
            own[i], alpha[i] = (a * v + (1 - a) * w if pfllib else v), a
            sent.append(w)
            torch.testing.assert_close(simulation.state(i)["own"], own[i], rtol=0, atol=1e-12)
            assert float(simulation.state(i)["alpha"]) == pytest.approx(a, abs=1e-12)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], w, rtol=0, atol=1e-12)
        server = sum(n / sum(sizes) * v for n, v in zip(sizes, sent, strict=True))
        torch.testing.assert_close(simulation.server.state["model"], server, rtol=0, atol=1e-12)
    assert any(abs(a - 0.3) > 1e-5 for a in alpha)
    for i in range(4):
        model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters()).detach()
        expected = own[i] if pfllib else alpha[i] * own[i] + (1 - alpha[i]) * server
        torch.testing.assert_close(model, expected, rtol=0, atol=1e-12)


def test_the_steps_on_v_and_alpha_follow_the_mixture_by_finite_differences(federation):
    simulation = Simulation(federation, APFL(alpha=0.4), NET, rounds=2, **SETTINGS)
    simulation.step()  # after the first round v and w differ
    w, before = simulation.server.state["model"].clone(), {k: t.clone() for k, t in simulation.state(1).items()}
    simulation.step()
    after = simulation.state(1)
    data = federation.clients[1].train
    x, y, a, v = data.x.double(), data.y, float(before["alpha"]), before["own"]

    def of_alpha(a):
        return float(loss(a * v + (1 - a) * w, x, y))

    slope = (of_alpha(a + 1e-6) - of_alpha(a - 1e-6)) / 2e-6
    assert float(after["alpha"]) == pytest.approx(a - 0.1 * slope, abs=1e-8)
    moved = (v - after["own"]) / 0.1
    for k in (0, 17, 33, 40, 56):
        nudge = torch.zeros_like(v)
        nudge[k] = 1e-6
        ahead, behind = (float(loss(a * (v + s * nudge) + (1 - a) * w, x, y)) for s in (1, -1))
        assert float(moved[k]) == pytest.approx((ahead - behind) / 2e-6, abs=1e-7)


def test_all_own_is_local_and_all_global_is_fedavg_to_the_bit(federation):
    run = {
        name: Simulation(federation, method, NET, rounds=3, join=0.5, epochs=2, **BATCHED).run()
        for name, method in {
            "own": APFL(alpha=1.0, adaptive=False),
            "global": APFL(alpha=0.0, adaptive=False),
            "local": Local(),
            "fedavg": FedAvg(),
        }.items()
    }
    for i in range(4):
        assert torch.equal(run["own"].state(i)["own"], run["local"].state(i)["model"])
    for a, b in (("own", "local"), ("global", "fedavg")):
        assert [r["accuracy"] for r in run[a].metrics] == [r["accuracy"] for r in run[b].metrics]
        assert [r["loss"] for r in run[a].metrics] == [r["loss"] for r in run[b].metrics]
    for name in ("own", "global"):  # the global model never feels the mixtures
        assert torch.equal(run[name].server.state["model"], run["fedavg"].server.state["model"])


@pytest.mark.parametrize("pfllib", [False, True])
def test_alpha_stays_a_share_whatever_the_step(federation, pfllib):
    simulation = Simulation(
        federation, APFL(pfllib_style=pfllib), NET, rounds=4, **{**BATCHED, "lr": 3.0, "join": 0.5}
    ).run()
    alphas = [float(simulation.state(i)["alpha"]) for i in range(4)]
    assert all(0 <= a <= 1 for a in alphas)
    assert all(torch.isfinite(simulation.state(i)["own"]).all() for i in range(4))
    logged = [o.logged["alpha"] for o in simulation.outcomes.values()]
    assert logged == [alphas[i] for i in simulation.outcomes]


def test_own_models_and_shares_stay_at_home(federation):
    simulation = Simulation(federation, APFL(), NET, rounds=2, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 8),
        ("down", "model", 57 * 8),
    }


def test_a_newcomer_starts_from_the_global_model_not_from_scratch(federation):
    simulation = Simulation(federation, APFL(alpha=0.3), NET, rounds=2, **SETTINGS).run()
    data = federation.clients[1]
    alone = Federation.from_clients([(data.train.x, data.train.y, data.test.x, data.test.y)])
    w = simulation.server.state["model"]
    expected = w - 0.3 * 0.1 * 0.3 * gradient(w, data.train.x.double(), data.train.y)  # α(w − ηα∇) + (1−α)w
    model = torch.nn.utils.parameters_to_vector(onboard(simulation, alone).model.parameters())
    torch.testing.assert_close(model.detach(), expected, rtol=0, atol=1e-12)
