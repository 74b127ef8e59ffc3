"""Per-FedAvg against its two-step gradient written out, and its one-step personal models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.per_fedavg import PerFedAvg, pieces
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def gradient(v, x, y):
    v = v.clone().requires_grad_()
    hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
    return torch.autograd.grad(F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y), v)[0]


def shuffled_parts(federation, client, count, round=1):
    """The client's samples in the order of its first epoch, cut in parts as equal as can be, the longer ones first."""
    data = federation.clients[client].train
    order = torch.randperm(len(data), generator=torch_stream(3, "fit", round, client, "meta"))
    cuts = np.array_split(order.numpy(), count)
    return [(data.x[rows].double(), data.y[rows]) for rows in cuts]


def mean_by_samples(federation, vectors):
    sizes = [len(c.train) for c in federation.clients]
    return sum(n / sum(sizes) * v for n, v in zip(sizes, vectors, strict=True))


def test_one_first_order_round_by_hand(federation):
    simulation = Simulation(federation, PerFedAvg(alpha=0.3, beta=0.2), NET, rounds=1, **SETTINGS)
    w = simulation.server.state["model"].clone()
    simulation.step()
    expected = []
    for i in range(4):
        first, second = shuffled_parts(federation, i, 2)
        u = w - 0.3 * gradient(w, *first)
        expected.append(w - 0.2 * gradient(u, *second))
        torch.testing.assert_close(simulation.traffic.up[i]["model"], expected[i], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        simulation.server.state["model"], mean_by_samples(federation, expected), rtol=0, atol=1e-12
    )


def test_one_hessian_free_round_by_hand(federation):
    method = PerFedAvg(variant="hessian-free", alpha=0.3, delta=1e-4)  # beta is lr
    simulation = Simulation(federation, method, NET, rounds=1, **SETTINGS)
    w = simulation.server.state["model"].clone()
    simulation.step()
    for i in range(4):
        first, second, third = shuffled_parts(federation, i, 3)
        g = gradient(w - 0.3 * gradient(w, *first), *second)
        difference = (gradient(w + 1e-4 * g, *third) - gradient(w - 1e-4 * g, *third)) / 2e-4
        sent = simulation.traffic.up[i]["model"]
        torch.testing.assert_close(sent, w - 0.1 * (g - 0.3 * difference), rtol=0, atol=1e-10)
        assert (sent - (w - 0.1 * g)).norm() > 1e-4  # not the first-order step


def test_the_finite_difference_is_the_hessian_times_the_gradient(federation):
    simulation = Simulation(federation, PerFedAvg(), NET, rounds=1, **SETTINGS)
    net = simulation.server.net(model=simulation.server.state["model"])
    data = federation.clients[2].train
    x, y = data.x.double(), data.y
    g = torch.randn(57, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(v):
        hidden = torch.relu(x @ v[:30].view(6, 5).T + v[30:36])
        return F.cross_entropy(hidden @ v[36:54].view(3, 6).T + v[54:], y)

    exact = torch.autograd.functional.hvp(loss, net.all.vector, g)[1]
    found = PerFedAvg(delta=1e-5)._curvature(simulation.worker._client(2, 1, "fit"), net, net.all.vector, g, (x, y))
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)


def test_batches_are_twice_the_size_and_steps_follow_each_other(federation):
    simulation = Simulation(federation, PerFedAvg(alpha=0.3), NET, rounds=1, **{**SETTINGS, "batch": 3})
    expected = simulation.server.state["model"].clone()
    simulation.step()
    (x, y), *_ = shuffled_parts(federation, 0, 1)  # 12 samples: two batches of two times three
    for start in (0, 6):
        first, second = slice(start, start + 3), slice(start + 3, start + 6)
        u = expected - 0.3 * gradient(expected, x[first], y[first])
        expected = expected - 0.1 * gradient(u, x[second], y[second])
    torch.testing.assert_close(simulation.traffic.up[0]["model"], expected, rtol=0, atol=1e-12)


def test_everyone_is_scored_one_step_from_the_common_start_which_stays_as_it_is(federation):
    simulation = Simulation(federation, PerFedAvg(alpha=0.3), NET, rounds=2, join=0.5, **SETTINGS).run()
    w = simulation.server.state["model"].clone()
    for i, client in enumerate(federation.clients):
        adapted = w - 0.3 * gradient(w, client.train.x.double(), client.train.y)
        model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
        torch.testing.assert_close(model.detach(), adapted, rtol=0, atol=1e-12)
        assert simulation.state(i) == {}
        logits = simulation.personal(i)(client.test.x.double())
        assert simulation.scores[i].correct == (logits.argmax(1) == client.test.y).sum()
    assert torch.equal(simulation.server.state["model"], w)


def test_without_adaptation_everyone_has_the_common_model(federation):
    simulation = Simulation(federation, PerFedAvg(alpha=0.0), NET, rounds=1, **SETTINGS).run()
    for i in range(4):
        model = torch.nn.utils.parameters_to_vector(simulation.personal(i).parameters())
        assert torch.equal(model, simulation.server.state["model"])


@pytest.mark.parametrize(
    ("n", "count", "smallest", "sizes"),
    [
        (10, 2, 1, [5, 5]),
        (3, 2, 1, [2, 1]),
        (1, 2, 1, [1, 1]),
        (2, 3, 1, [1, 1, 1]),
        (3, 2, 2, [3, 3]),
        (5, 3, 2, [3, 2, 3]),
    ],
)
def test_pieces_are_disjoint_as_long_as_there_are_samples(n, count, smallest, sizes):
    rows = torch.arange(n)
    cut = [y.tolist() for _, y in pieces(rows[:, None], rows, count, smallest)]
    assert [len(c) for c in cut] == sizes
    if sum(sizes) == n:
        assert sorted(row for piece in cut for row in piece) == list(range(n))


@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
def test_clients_too_small_to_split_still_train_even_with_batchnorm(variant):
    rng = np.random.default_rng(0)
    none = (np.zeros((0, 5), np.float32), np.zeros(0, int))
    parts = [(rng.normal(size=(n, 5)).astype(np.float32), np.arange(n) % 3, *none) for n in (1, 2, 3, 5)]
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    federation = Federation.from_clients(parts)
    for module in (net, NET):
        simulation = Simulation(federation, PerFedAvg(variant=variant), module, rounds=2, batch=4, lr=0.1)
        before = simulation.server.state["model"].clone()
        simulation.run()
        assert torch.isfinite(simulation.server.state["model"]).all()
        changed = [not torch.equal(up["model"], before) for up in simulation.traffic.up.values()]
        assert all(changed[1:])
        assert all(p.isfinite().all() for i in range(4) for p in simulation.personal(i).parameters())


def test_only_the_common_model_travels(federation):
    simulation = Simulation(federation, PerFedAvg(), NET, rounds=1, **SETTINGS).run()
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", 57 * 8),
        ("down", "model", 57 * 8),
    }


@pytest.mark.parametrize("point", ["after_sync", "after_train"])
def test_the_step_to_a_personal_model_draws_from_named_streams_alone(federation, point):
    """Dropout, too: whatever torch's own generator did before, a score comes out the same."""
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    metrics = []
    for noise in (1, 2):
        simulation = Simulation(federation, PerFedAvg(alpha=0.5), net, rounds=2, batch=3, lr=0.1, eval_point=point)
        torch.manual_seed(noise)
        metrics.append([(r["loss"], r["train_loss"]) for r in simulation.run().metrics])
    assert metrics[0] == metrics[1]
