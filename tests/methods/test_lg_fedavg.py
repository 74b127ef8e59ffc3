"""LG-FedAvg: bodies stay, heads are averaged."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedtailor import Simulation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.lg_fedavg import LGFedAvg
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def gradient(v, x, y):
    v = v.clone().requires_grad_()
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    return torch.autograd.grad(F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y), v)[0]


def test_two_rounds_by_hand(federation):
    simulation = Simulation(federation, LGFedAvg(), NET, rounds=2, epochs=2, **SETTINGS)
    initial = simulation.server.net().all.vector
    bodies, head = [initial[:36]] * 4, initial[36:]
    for _ in range(2):
        simulation.step()
        heads = []
        for i, client in enumerate(federation.clients):
            v = torch.cat([bodies[i], head])
            for _ in range(2):
                v = v - 0.1 * gradient(v, client.train.x.double(), client.train.y)
            bodies[i] = v[:36]
            heads.append(v[36:])
            torch.testing.assert_close(simulation.state(i)["body"], v[:36], rtol=0, atol=1e-12)
            torch.testing.assert_close(simulation.traffic.up[i]["head"], v[36:], rtol=0, atol=1e-12)
        head = sum(heads) / 4  # every client counts alike
        torch.testing.assert_close(simulation.server.state["head"], head, rtol=0, atol=1e-12)


def test_only_heads_travel(federation):
    simulation = Simulation(federation, LGFedAvg(), NET, rounds=2, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "head", 21 * 8),
        ("down", "head", 21 * 8),
    }


def test_an_absent_client_has_its_old_body_under_the_new_head(federation):
    simulation = Simulation(federation, LGFedAvg(), NET, rounds=3, join=0.5, **SETTINGS)
    simulation.step()
    simulation.step()
    bodies = {i: simulation.state(i)["body"].clone() for i in range(4)}
    simulation.step()
    absent = [i for i in range(4) if i not in simulation.traffic.up]
    for i in absent:
        model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
        assert torch.equal(model, torch.cat([bodies[i], simulation.server.state["head"]]))


def test_a_net_that_is_all_head_makes_it_an_unweighted_fedavg(federation):
    logistic = MLP(hidden=())
    lg, avg = (Simulation(federation, m, logistic, rounds=1, **SETTINGS).run() for m in (LGFedAvg(), FedAvg()))
    for i in range(4):
        assert torch.equal(lg.traffic.up[i]["head"], avg.traffic.up[i]["model"])
    torch.testing.assert_close(lg.server.state["head"], sum(up["model"] for up in avg.traffic.up.values()) / 4)
