"""FedGH: bodies that stay, class means that travel, and a head the server trains on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedgh import FedGH
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def stepped(tensors, loss, lr):
    return [(t - lr * g).detach() for t, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True)]


def leaves(tensors):
    return [t.clone().requires_grad_() for t in tensors]


def test_two_rounds_by_hand(federation):
    simulation = Simulation(federation, FedGH(server_lr=0.3, server_epochs=2), NET, rounds=2, **SETTINGS)
    initial = list(simulation.server.net().all.named(simulation.server.net().all.vector).values())
    bodies, head = [initial[:2]] * 4, initial[2:]
    for _ in range(2):
        simulation.step()
        pairs = []
        for i, client in enumerate(federation.clients):
            x, y = client.train.x.double(), client.train.y
            model = leaves([*bodies[i], *head])
            logits = torch.relu(x @ model[0].T + model[1]) @ model[2].T + model[3]
            model = stepped(model, F.cross_entropy(logits, y), 0.1)
            bodies[i] = model[:2]
            z = torch.relu(x @ model[0].T + model[1])
            own = [(z[y == c].mean(0), c) for c in range(3) if (y == c).any()]
            pairs += own
            torch.testing.assert_close(
                simulation.state(i)["body"], torch.cat([t.reshape(-1) for t in bodies[i]]), rtol=0, atol=1e-10
            )
            sent = simulation.traffic.up[i]
            assert sent["labels"].tolist() == [c for _, c in own]
            torch.testing.assert_close(sent["means"], torch.stack([p for p, _ in own]), rtol=0, atol=1e-10)
        p, labels = torch.stack([p for p, _ in pairs]), torch.tensor([c for _, c in pairs])
        for _ in range(2):
            head = leaves(head)
            head = stepped(head, F.cross_entropy(p @ head[0].T + head[1], labels), 0.3)
        torch.testing.assert_close(
            simulation.server.state["head"], torch.cat([t.reshape(-1) for t in head]), rtol=0, atol=1e-10
        )
    for i, client in enumerate(federation.clients):  # everyone is scored with the own body and the server's new head
        z = torch.relu(client.test.x.double() @ bodies[i][0].T + bodies[i][1])
        assert simulation.scores[i].correct == ((z @ head[0].T + head[1]).argmax(1) == client.test.y).sum()


def test_a_class_nobody_sent_keeps_its_row_to_the_bit():
    rng = np.random.default_rng(0)
    parts = [
        (rng.normal(size=(6, 5)), np.array(y), rng.normal(size=(1, 5)), np.array([2])) for y in ([0, 0, 1] * 2, [1] * 6)
    ]
    simulation = Simulation(Federation.from_clients(parts), FedGH(), NET, rounds=1, **SETTINGS)
    before = simulation.server.net().head.named(simulation.server.state["head"].clone())
    simulation.run()
    after = simulation.server.net().head.named(simulation.server.state["head"])
    for name in before:
        assert torch.equal(after[name][2], before[name][2])
        assert not torch.equal(after[name][:2], before[name][:2])


def test_one_class_in_a_round_leaves_the_head_as_it_was():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(3, 5)), np.array([1] * 3), rng.normal(size=(2, 5)), np.array([0, 2]))]
    simulation = Simulation(Federation.from_clients(parts), FedGH(), NET, rounds=1, **SETTINGS)
    before = simulation.server.state["head"].clone()
    simulation.run()
    assert torch.equal(simulation.server.state["head"], before)


def test_the_first_local_training_is_that_of_a_client_alone(federation):
    settings = {**SETTINGS, "batch": 4, "dtype": "float32"}
    ours, alone = (Simulation(federation, m, NET, rounds=1, **settings).run() for m in (FedGH(), Local()))
    for i in range(4):
        trained = torch.cat([ours.state(i)["body"], ours.state(i)["trained_head"]])
        assert torch.equal(trained, alone.state(i)["model"])


@pytest.mark.parametrize("point", ["after_sync", "after_train"])
def test_right_after_training_the_clients_own_head_is_scored(federation, point):
    simulation = Simulation(federation, FedGH(server_lr=5.0), NET, rounds=2, eval_point=point, **SETTINGS).run()
    for i, client in enumerate(federation.clients):
        own = simulation.state(i)
        head = own["trained_head"] if point == "after_train" else simulation.server.state["head"]
        logits = simulation.server.net(body=own["body"], head=head)(client.test.x.double())
        loss = F.cross_entropy(logits, client.test.y, reduction="sum").item()
        assert simulation.scores[i].loss == pytest.approx(loss, abs=1e-10)


def test_who_does_not_take_part_gets_the_head_and_keeps_the_body(federation):
    simulation = Simulation(federation, FedGH(), NET, rounds=1, join=0.5, **SETTINGS)
    initial = simulation.server.net().body.vector
    simulation.run()
    absent = next(i for i in range(4) if i not in simulation.traffic.up)
    x = federation.clients[absent].test.x.double()
    net = simulation.server.net(body=initial, head=simulation.server.state["head"])
    assert torch.equal(simulation.personal(absent)(x), net(x))


def test_only_the_head_goes_down_and_means_of_own_classes_go_up(federation):
    simulation = Simulation(federation, FedGH(), NET, rounds=1, **SETTINGS).run()
    classes = [len(c.train.y.unique()) for c in federation.clients]
    assert {(e.client, e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        entry
        for i, k in enumerate(classes)
        for entry in (
            (i, "down", "head", (6 * 3 + 3) * 8),
            (i, "up", "means", k * 6 * 8),
            (i, "up", "labels", k * 8),
        )
    }
