"""FedAFK against its algorithm in plain autograd, and the share μ against finite differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods import Method
from fedtailor.methods.fedafk import FedAFK
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
LR = 0.1
FULL = {"dtype": "float64", "batch": 1000, "lr": LR, "seed": 3}
SMALL = {"batch": 4, "lr": LR, "seed": 3}


def features(body, x):
    return torch.relu(x @ body[:30].view(6, 5).T + body[30:])


def classify(head, z):
    return z @ head[:18].view(3, 6).T + head[18:]


def kl(p_logits, q_logits):
    p, q = torch.softmax(p_logits, 1), torch.softmax(q_logits, 1)
    return (p * (p.log() - q.log())).sum(1).mean()


def total(method, body, head, teacher, x, y):
    """ℓ_total of the paper's equations 8 and 9."""
    z = features(body, x)
    ce = F.cross_entropy(classify(head, z), y)
    if not method.kt:
        return ce
    target = features(teacher, x).detach()
    transfer = kl(z, target) if method.kt_dir == "local-global" else kl(target, z)
    return (1 - method.lam) * ce + method.lam * transfer


def gradient(function, at):
    at = at.detach().clone().requires_grad_()
    return torch.autograd.grad(function(at), at)[0]


def client_by_hand(method, received, own, head, mu, random_head, data, epochs):
    """Algorithm 1, lines 7 to 14, with one full batch an epoch."""
    x, y = data.x.double(), data.y
    shared = received
    for _ in range(epochs):
        shared = shared - LR * gradient(lambda b: F.cross_entropy(classify(random_head, features(b, x)), y), shared)
        teacher = shared if method.kt_ref == "running" else received
        own = own - LR * gradient(lambda b, t=teacher, h=head: total(method, b, h, t, x, y), own)
        if method.afa:

            def along(m, t=teacher, a=own, b=shared, h=head):
                return total(method, m * a + (1 - m) * b, h, t, x, y)

            point = mu if method.mu_at == "mixture" else torch.ones_like(mu)
            mu = (mu - (method.mu_lr or LR) * gradient(along, point)).clamp(0, 1)
            own = mu * own + (1 - mu) * shared
        z = features(own, x)
        head = head - LR * gradient(lambda h, z=z: F.cross_entropy(classify(h, z), y), head)
    return shared, own, head, mu


@pytest.mark.parametrize(
    "method",
    [
        FedAFK(),
        FedAFK(afa=False),
        FedAFK(kt=False, mu_lr=2.0),
        FedAFK(lam=0.6, kt_dir="global-local", mu0=0.9),
        FedAFK(kt_ref="received", mu_lr=3.0),
        FedAFK(mu_at="own", mu0=0.2, mu_lr=1.0),
    ],
)
def test_two_rounds_by_hand(federation, method):
    simulation = Simulation(federation, method, NET, rounds=2, epochs=2, **FULL)
    body = simulation.server.state["body"].clone()
    random_head = simulation.server.net().head.vector
    states = {i: (body, random_head, torch.tensor(method.mu0, dtype=torch.float64)) for i in range(4)}
    sizes = [len(c.train) for c in federation.clients]
    for _ in range(2):
        simulation.step()
        bodies = []
        for i, client in enumerate(federation.clients):
            shared, *kept = client_by_hand(method, body, *states[i], random_head, client.train, epochs=2)
            bodies.append(shared)
            states[i] = tuple(kept)
            torch.testing.assert_close(simulation.traffic.up[i]["body"], shared, rtol=0, atol=1e-11)
            for name, expected in zip(("own_body", "own_head", "mu"), kept, strict=True):
                torch.testing.assert_close(simulation.state(i)[name], expected, rtol=0, atol=1e-11)
        body = sum(n / sum(sizes) * b for n, b in zip(sizes, bodies, strict=True))
        torch.testing.assert_close(simulation.server.state["body"], body, rtol=0, atol=1e-11)
    moved = [abs(simulation.outcomes[i].logged["mu"] - method.mu0) for i in range(4)]
    assert (max(moved) > 1e-4) == method.afa
    for i, (own, head, _) in states.items():  # scored right after local training
        test = federation.clients[i].test
        right = (classify(head, features(own, test.x.double())).argmax(1) == test.y).sum()
        assert simulation.scores[i].correct == right


def test_mu_goes_down_the_slope_found_by_finite_differences(federation):
    method = FedAFK(mu_lr=0.5)
    simulation = Simulation(federation, method, NET, rounds=1, **FULL)
    net = simulation.server.net()
    initial, head = net.body.vector, net.head.vector  # the head that μ saw: it trains after the mixing
    simulation.step()
    for i, client in enumerate(federation.clients):
        x, y = client.train.x.double(), client.train.y
        shared, mu = simulation.traffic.up[i]["body"], simulation.state(i)["mu"]
        own = (simulation.state(i)["own_body"] - (1 - mu) * shared) / mu  # the mixing undone
        values = [total(method, m * own + (1 - m) * shared, head, shared, x, y) for m in (0.5 + 1e-5, 0.5 - 1e-5)]
        slope = (values[0] - values[1]) / 2e-5
        assert abs(slope) > 1e-6
        torch.testing.assert_close(mu, 0.5 - 0.5 * slope, rtol=0, atol=1e-8)
        assert not torch.allclose(own, initial)


def test_mu_stays_between_0_and_1(federation):
    for mu0 in (0.0, 1.0):
        simulation = Simulation(federation, FedAFK(mu0=mu0, mu_lr=1e4), NET, rounds=4, **SMALL).run()
        shares = [float(simulation.state(i)["mu"]) for i in range(4)]
        assert all(0 <= share <= 1 for share in shares)
        assert any(share in (0, 1) for share in shares)


@dataclass(frozen=True)
class Alternating(Method):
    """Local training of the body, then of the head, an epoch each."""

    keeps = ("model",)

    def init(self, client):
        return {"model": client.net().all.vector}

    def fit(self, client, payload):
        net = self.personal(client, payload)
        for _ in range(client.protocol.epochs):
            client.train(net.body, epochs=1)
            client.train(net.head, epochs=1)
        client.state["model"] = net.all.vector
        return {}

    def personal(self, client, payload):
        return client.net(model=client.state["model"])


Alternating.name = "alternating"


def test_without_both_parts_it_is_alternating_local_training_to_the_bit(federation):
    bare = Simulation(federation, FedAFK(afa=False, kt=False), NET, rounds=3, epochs=2, **SMALL).run()
    alone = Simulation(federation, Alternating(), NET, rounds=3, epochs=2, **SMALL).run()
    for i in range(4):
        kept = bare.state(i)
        assert torch.equal(torch.cat([kept["own_body"], kept["own_head"]]), alone.state(i)["model"])
        assert kept["mu"] == 0.5


def test_a_weight_of_zero_is_no_knowledge_transfer(federation):
    runs = [
        Simulation(federation, m, NET, rounds=2, epochs=2, **FULL).run() for m in (FedAFK(lam=0.0), FedAFK(kt=False))
    ]
    for name in ("own_body", "own_head", "mu"):
        torch.testing.assert_close(runs[0].state(1)[name], runs[1].state(1)[name], rtol=0, atol=1e-12)


def test_the_shared_body_does_not_depend_on_the_personal_side(federation):
    methods = (FedAFK(), FedAFK(afa=False, kt=False), FedAFK(lam=0.9, mu_lr=5.0))
    bodies = [Simulation(federation, m, NET, rounds=3, **SMALL).run().server.state["body"] for m in methods]
    assert all(torch.equal(bodies[0], other) for other in bodies[1:])


def test_only_bodies_travel_and_those_who_sit_out_keep_everything(federation):
    simulation = Simulation(federation, FedAFK(), NET, rounds=3, join=0.5, **FULL)
    simulation.step()
    before = {i: {k: v.clone() for k, v in simulation.state(i).items()} for i in range(4)}
    simulation.step()
    size = len(simulation.server.net().body) * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "body", size),
        ("down", "body", size),
    }
    absent = [i for i in range(4) if i not in simulation.traffic.up]
    assert len(absent) == 2
    assert all(torch.equal(simulation.state(i)[k], v) for i in absent for k, v in before[i].items())


def test_tiny_and_one_sided_clients(caplog):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    none = (x[:0], np.zeros(0, int))
    federation = Federation.from_clients([(x[:1], [0], *none), (x[1:5], [1] * 4, *none), (x[5:], [0, 1, 2, 2], *none)])
    simulation = Simulation(federation, FedAFK(), NET, rounds=4, batch=3, lr=0.1).run()
    assert torch.isfinite(simulation.server.state["body"]).all()
    assert all(torch.isfinite(t).all() for i in range(3) for t in simulation.state(i).values())
    assert not caplog.records


def test_the_trial_at_the_mixture_leaves_batchnorm_statistics_alone(federation):
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    buffers = [
        Simulation(federation, FedAFK(afa=afa), net, rounds=2, batch=4, lr=1e-12).run().state(0)["buffers.personal"]
        for afa in (True, False)
    ]
    assert not torch.allclose(buffers[0], net[1].running_mean.new_tensor([0.0] * 6 + [1.0] * 6))  # they did learn
    torch.testing.assert_close(*buffers, rtol=1e-4, atol=1e-5)


def test_a_round_of_steps_is_one_pass_of_so_many_on_bodies_and_head(federation):
    settings = {
        "rounds": 2,
        "batch": 100,
        "lr": 0.1,
        "seed": 1,
    }  # one batch is all of a client's samples: an epoch is a step
    one, two = (Simulation(federation, "fedafk", "mlp", steps=n, **settings) for n in (1, 2))
    epoch = Simulation(federation, "fedafk", "mlp", epochs=1, **settings)
    for simulation in (one, two, epoch):
        simulation.run()
    assert torch.equal(one.server.state["body"], epoch.server.state["body"])
    assert not torch.equal(two.server.state["body"], epoch.server.state["body"])
