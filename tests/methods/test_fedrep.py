"""FedPer and FedRep: what is shared, what is kept, and which part trains when."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedtailor import Simulation
from fedtailor.learning import weighted_mean
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def parts(simulation):
    net = simulation.server.net()
    return net.body.named(net.body.vector).values(), net.head.named(net.head.vector).values()


def test_one_fedrep_round_by_hand(federation):
    simulation = Simulation(federation, FedRep(head_epochs=2), NET, rounds=1, **SETTINGS)
    (w1, b1), (w2, b2) = parts(simulation)
    simulation.step()
    bodies = []
    for i, client in enumerate(federation.clients):
        x, y = client.train.x.double(), client.train.y
        head = [w2.clone().requires_grad_(), b2.clone().requires_grad_()]
        z = torch.relu(x @ w1.T + b1)
        for _ in range(2):
            grads = torch.autograd.grad(F.cross_entropy(z @ head[0].T + head[1], y), head)
            head = [(t - 0.1 * g).detach().requires_grad_() for t, g in zip(head, grads, strict=True)]
        body = [w1.clone().requires_grad_(), b1.clone().requires_grad_()]
        grads = torch.autograd.grad(F.cross_entropy(torch.relu(x @ body[0].T + body[1]) @ head[0].T + head[1], y), body)
        bodies.append(torch.cat([(t - 0.1 * g).detach().reshape(-1) for t, g in zip(body, grads, strict=True)]))
        kept = torch.cat([t.detach().reshape(-1) for t in head])
        torch.testing.assert_close(simulation.state(i)["head"], kept, rtol=0, atol=1e-12)
        torch.testing.assert_close(simulation.traffic.up[i]["body"], bodies[i], rtol=0, atol=1e-12)
    sizes = [len(c.train) for c in federation.clients]
    mean = sum(n / sum(sizes) * b for n, b in zip(sizes, bodies, strict=True))
    torch.testing.assert_close(simulation.server.state["body"], mean, rtol=0, atol=1e-12)


def test_the_head_phase_leaves_the_body_untouched_and_the_other_way_round(federation):
    settings = {**SETTINGS, "dtype": "float32", "batch": 4}
    head_only = Simulation(federation, FedRep(head_epochs=3), NET, rounds=1, epochs=0, **settings)
    before = head_only.server.state["body"].clone()
    head_only.step()
    assert all(torch.equal(up["body"], before) for up in head_only.traffic.up.values())
    body_only = Simulation(federation, FedRep(head_epochs=0), NET, rounds=1, **settings)
    initial = {i: body_only.state(i)["head"].clone() for i in range(4)}
    body_only.step()
    assert all(torch.equal(body_only.state(i)["head"], initial[i]) for i in range(4))
    assert not any(torch.equal(up["body"], before) for up in body_only.traffic.up.values())


def test_only_bodies_travel(federation):
    for method in (FedPer(), FedRep()):
        simulation = Simulation(federation, method, NET, rounds=2, **SETTINGS).run()
        size = len(simulation.server.net().body) * 8
        assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
            ("up", "body", size),
            ("down", "body", size),
        }
        assert simulation.metrics[-1]["bytes_up"] == 4 * size


def test_fedper_trains_both_parts_together(federation):
    simulation = Simulation(federation, FedPer(), NET, rounds=1, **SETTINGS)
    (w1, b1), (w2, b2) = parts(simulation)
    simulation.step()
    client = federation.clients[1].train
    tensors = [t.clone().requires_grad_() for t in (w1, b1, w2, b2)]
    loss = F.cross_entropy(
        torch.relu(client.x.double() @ tensors[0].T + tensors[1]) @ tensors[2].T + tensors[3], client.y
    )
    stepped = [
        (t - 0.1 * g).detach().reshape(-1) for t, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True)
    ]
    torch.testing.assert_close(simulation.traffic.up[1]["body"], torch.cat(stepped[:2]), rtol=0, atol=1e-12)
    torch.testing.assert_close(simulation.state(1)["head"], torch.cat(stepped[2:]), rtol=0, atol=1e-12)


def test_a_client_that_did_not_take_part_is_scored_with_the_new_body_and_its_old_head(federation):
    simulation = Simulation(federation, FedRep(), NET, rounds=4, join=0.25, **SETTINGS).run()
    absent = next(i for i in range(4) if i not in simulation.traffic.up)
    model = simulation.personal(absent)
    net = simulation.server.net(body=simulation.server.state["body"], head=simulation.state(absent)["head"])
    x = federation.clients[absent].test.x.double()
    assert torch.equal(model(x), net(x))


def test_weighted_mean_ignores_the_order_it_is_computed_in(federation):
    simulation = Simulation(federation, FedRep(), NET, rounds=1, **SETTINGS).run()
    from fedtailor.learning import Reply

    replies = [Reply(i, o.samples, o.up) for i, o in simulation.outcomes.items()]
    assert [r.client for r in replies] == sorted(r.client for r in replies)
    assert torch.equal(weighted_mean(replies, "body"), simulation.server.state["body"])
    assert torch.allclose(weighted_mean(replies, "body", [1, 1, 1, 1]), sum(r["body"] for r in replies) / 4)
