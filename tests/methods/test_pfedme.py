"""pFedMe against its equations, and against the Moreau envelope it is meant to descend."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedtailor import Simulation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.pfedme import PFedMe
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
LOGISTIC = MLP(hidden=())
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def gradient(v, x, y):
    v = v.clone().requires_grad_()
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    return torch.autograd.grad(F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y), v)[0]


def test_two_rounds_by_hand(federation):
    method = PFedMe(lam=2.0, inner_steps=3, personal_lr=0.05, beta=0.7, mu=0.01)
    simulation = Simulation(federation, method, NET, rounds=2, epochs=2, **SETTINGS)
    server = simulation.server.state["model"].clone()
    for _ in range(2):
        simulation.step()
        sent = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            theta, w = server.clone(), server.clone()
            for _ in range(2):  # epochs of one full batch
                for _ in range(3):
                    theta = theta - 0.05 * (gradient(theta, x, y) + 2.0 * (theta - w) + 0.01 * theta)
                w = w - 0.1 * 2.0 * (w - theta)
            torch.testing.assert_close(simulation.state(i)["personal"], theta, rtol=0, atol=1e-12)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], w, rtol=0, atol=1e-12)
            sent.append(w)
        server = 0.3 * server + 0.7 * sum(sent) / 4  # every client counts alike
        torch.testing.assert_close(simulation.server.state["model"], server, rtol=0, atol=1e-12)


def test_the_common_model_descends_the_moreau_envelope(federation):
    """F(w) = min_θ f(θ) + λ/2·‖θ − w‖² has the gradient λ(w − θ*): compared with differences of F itself."""
    method = PFedMe(lam=1.5, inner_steps=120, personal_lr=0.2, mu=0.0)
    simulation = Simulation(federation, method, LOGISTIC, rounds=1, **SETTINGS)
    w = simulation.server.state["model"].clone()
    simulation.step()
    x, y = federation.clients[0].train.x.double(), federation.clients[0].train.y

    def envelope(w):
        theta = w.clone().requires_grad_()
        solver = torch.optim.LBFGS([theta], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)

        def objective():
            solver.zero_grad()
            value = F.cross_entropy(x @ theta[:15].view(3, 5).T + theta[15:], y) + 0.75 * (theta - w).square().sum()
            value.backward()
            return value

        solver.step(objective)
        return objective().item()

    descended = (w - simulation.traffic.up[0]["model"]) / 0.1
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = torch.randn(18, dtype=torch.float64, generator=generator)
        slope = (envelope(w + 1e-4 * direction) - envelope(w - 1e-4 * direction)) / 2e-4
        assert abs(slope - float(direction @ descended)) < 1e-6


def test_with_beta_zero_the_server_stands_still(federation):
    simulation = Simulation(federation, PFedMe(beta=0.0), NET, rounds=3, **SETTINGS)
    before = simulation.server.state["model"].clone()
    simulation.run()
    assert torch.equal(simulation.server.state["model"], before)


def test_without_the_pull_a_personal_model_is_fedavgs_local_model_to_the_bit(federation):
    settings = {**SETTINGS, "dtype": "float32", "batch": 4}
    method = PFedMe(lam=0.0, inner_steps=1, personal_lr=0.1, mu=0.0)
    ours, fedavg = (Simulation(federation, m, NET, rounds=1, **settings) for m in (method, FedAvg()))
    before = ours.server.state["model"].clone()
    ours.run()
    fedavg.run()
    for i in range(4):
        assert torch.equal(ours.state(i)["personal"], fedavg.traffic.up[i]["model"])
    assert torch.equal(ours.server.state["model"], before)  # λ(w − θ) = 0


def test_absent_clients_keep_their_personal_model_which_at_first_is_the_initial_one(federation):
    simulation = Simulation(federation, PFedMe(), NET, rounds=3, join=0.25, **SETTINGS)
    start = simulation.server.state["model"].clone()
    kept: dict[int, torch.Tensor] = {}
    for _ in range(3):
        simulation.step()
        kept |= {i: simulation.state(i)["personal"].clone() for i in simulation.traffic.up}
        for i in range(4):
            model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
            assert torch.equal(model, kept.get(i, start))
    assert 0 < len(kept) < 4


def test_the_server_steps_on_while_personal_models_stay_private(federation):
    simulation = Simulation(federation, PFedMe(), NET, rounds=1, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 8),
        ("down", "model", 57 * 8),
    }
    assert not any(
        torch.allclose(up["model"], simulation.state(i)["personal"]) for i, up in simulation.traffic.up.items()
    )


def test_inner_steps_that_diverge_are_undone(federation, caplog):
    simulation = Simulation(federation, PFedMe(personal_lr=1e12), NET, rounds=2, **SETTINGS).run()
    assert torch.isfinite(simulation.server.state["model"]).all()
    assert all(torch.isfinite(simulation.state(i)["personal"]).all() for i in range(4))
    assert "diverged" in caplog.text or "left out" in caplog.text
