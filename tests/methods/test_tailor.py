"""tailor: rounds, prior and close by hand, and what is left when parts are taken away."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import brentq
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.experiment.onboarding import onboard
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.methods.tailor import Tailor
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3}


def skewed() -> Federation:
    """Three clients, none of which has all three classes."""
    rng = np.random.default_rng(1)
    parts = []
    for classes, size in (([0, 1, 1], 12), ([1, 2], 9), ([2], 7)):
        y = np.array(classes * size)[:size]
        x = (rng.normal(size=(size, 5)) + y[:, None]).astype(np.float32)
        parts.append((x, y, x[:4], y[:4]))
    return Federation.from_clients(parts)


def logits(w, x):
    return torch.relu(x @ w[:30].view(6, 5).T + w[30:36]) @ w[36:54].view(3, 6).T + w[54:]


def gradient(w, x, y, held):
    w = w.clone().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(logits(w, x) - held, y), w)[0]


def with_prior(w, x, y):
    """w with α·log p added to the bias, α where the derivative of the loss is zero."""
    counts = torch.bincount(y, minlength=3).double() + 0.5
    prior = (counts / counts.sum()).log()
    z = logits(w, x)

    def slope(share):
        return ((torch.softmax(z + share * prior, 1) - F.one_hot(y, 3)) * prior).sum(1).mean().item()

    share = 0.0 if slope(0) >= 0 else 1.0 if slope(1) <= 0 else brentq(slope, 0, 1, xtol=1e-15)
    return torch.cat([w[:54], w[54:] + share * prior])


def entropy(y):
    p = torch.bincount(y).double() / len(y)
    return -torch.xlogy(p, p).sum().item()


def held_down(y, h):
    """h·(entropy over that of equally frequent labels) for classes that are not there."""
    present = len(y.unique())
    return h * entropy(y) / np.log(max(2, present)) * (torch.bincount(y, minlength=3) == 0).double()


def test_rounds_prior_and_close_by_hand():
    federation = skewed()
    simulation = Simulation(federation, Tailor(hold=2.0, close_epochs=6), NET, rounds=3, **SETTINGS)
    w, v = simulation.server.state["model"].clone(), 0.0
    data = [(c.train.x.double(), c.train.y) for c in federation.clients]
    sizes = torch.tensor([float(len(y)) for _, y in data], dtype=torch.float64)
    for _ in range(3):
        simulation.step()
        sent = [w - 0.1 * gradient(w, x, y, held_down(y, 2.0)) for x, y in data]
        mean = sum(n * s for n, s in zip(sizes / sizes.sum(), sent, strict=True))
        v = 0.85 * v + mean - w
        w = w + v
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-12)
    simulation.step()
    assert simulation.finished
    for i, (x, y) in enumerate(data):
        begin = with_prior(w, x, y)
        fitted, velocity, ends = begin, 0.0, []
        for _ in range(6):
            velocity = 0.9 * velocity + gradient(fitted, x, y, 0.0)
            fitted = fitted - 0.01 * velocity
            ends.append(fitted)
        expected = begin + len(y) / (len(y) + 20) * (sum(ends[3:]) / 3 - begin)
        torch.testing.assert_close(simulation.state(i)["personal"], expected, rtol=0, atol=1e-12)


def test_without_momentum_hold_and_close_it_is_fedavg_with_prior_to_the_bit():
    plain = Simulation(skewed(), FedAvg(), NET, rounds=3, batch=4, seed=3).run()
    bare = Simulation(skewed(), Tailor(hold=0, momentum=0, close_epochs=0), NET, rounds=3, batch=4, seed=3).run()
    assert torch.equal(plain.server.state["model"], bare.server.state["model"])
    for i in range(3):
        ours, theirs = bare.personal(i), plain.personal(i)
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b) == (name != "fc.bias"), name
    no_prior = Simulation(
        skewed(), Tailor(hold=0, momentum=0, close_epochs=0, prior=False), NET, rounds=3, batch=4, seed=3
    ).run()
    assert no_prior.metrics[-1]["accuracy"] == plain.metrics[-1]["accuracy"]


def test_a_whole_step_to_the_last_epoch_is_plain_fine_tuning():
    close = {"close_epochs": 4, "close_lr": 0.1, "close_momentum": 0.0, "averaged_epochs": 1, "doubt": 0.0}
    ours = Simulation(skewed(), Tailor(hold=0, momentum=0, prior=False, **close), NET, rounds=2, **SETTINGS).run()
    theirs = Simulation(skewed(), FedAvgFT(ft_epochs=4), NET, rounds=2, **SETTINGS).run()
    for i in range(3):
        torch.testing.assert_close(ours.state(i)["personal"], theirs.state(i)["personal"], rtol=0, atol=1e-12)


def test_by_default_the_close_takes_two_fifths_of_the_rounds_epochs_within_bounds():
    for rounds, epochs, close in ((2, 1, 8), (3, 10, 12), (6, 10, 20)):
        settings = {**SETTINGS, "rounds": rounds, "epochs": epochs}
        ours, given = (Simulation(skewed(), Tailor(close_epochs=n), NET, **settings).run() for n in (None, close))
        assert torch.equal(ours.state(0)["personal"], given.state(0)["personal"])


def test_the_runs_server_optimizer_takes_the_place_of_its_momentum():
    given = Simulation(skewed(), Tailor(), NET, rounds=3, server_optimizer="momentum", server_momentum=0.85, **SETTINGS)
    own = Simulation(skewed(), Tailor(), NET, rounds=3, **SETTINGS)
    other = Simulation(skewed(), Tailor(), NET, rounds=3, server_optimizer="adam", **SETTINGS)
    models = [s.run().server.state["model"] for s in (given, own, other)]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_a_prior_that_says_nothing_is_not_used():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    x = rng.normal(size=(30, 5)).astype(np.float32)
    same = Federation.from_clients([(x, y, x, y)] * 2)
    run = Simulation(same, Tailor(momentum=0, hold=0, close_epochs=0), NET, rounds=1, **SETTINGS).run()
    bias = run.personal(0).fc.bias - Simulation(same, FedAvg(), NET, rounds=1, **SETTINGS).run().personal(0).fc.bias
    assert (bias - bias.mean()).abs().max() < 1e-12  # a constant changes no prediction


def test_binary_tasks_get_the_log_odds():
    rng = np.random.default_rng(0)
    y = np.array([True] * 18 + [False] * 2)
    x = rng.normal(size=(20, 5)).astype(np.float32)
    federation = Federation.from_clients([(x, y, x, y), (x, ~y, x, ~y)])
    run = Simulation(federation, Tailor(close_epochs=0), NET, rounds=2, **SETTINGS).run()
    plain = Simulation(federation, Tailor(close_epochs=0, prior=False), NET, rounds=2, **SETTINGS).run()
    shifts = [(run.personal(i).fc.bias - plain.personal(i).fc.bias).item() for i in (0, 1)]
    assert 0 < shifts[0] <= np.log(18.5 / 2.5)
    assert -np.log(18.5 / 2.5) <= shifts[1] < 0


def test_a_new_client_adds_its_prior_and_closes():
    federation = skewed()
    members = Federation(federation.clients[:2], federation.description, federation.server)
    alone = Federation(federation.clients[2:], federation.description, federation.server)
    run = Simulation(members, Tailor(), NET, rounds=2, **SETTINGS).run()
    new = onboard(run, alone)
    assert new.after.loss < new.before.loss


def test_where_alone_is_no_better_the_guard_changes_nothing():
    runs = [Simulation(skewed(), Tailor(alone=n), NET, rounds=2, **SETTINGS).run() for n in (0, 1)]
    for i in range(3):
        assert torch.equal(*(run.state(i)["personal"] for run in runs))


def test_a_client_that_the_others_mislead_keeps_the_model_that_it_trained_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    others = [(x, 1 - y, x, 1 - y)] * 4
    federation = Federation.from_clients([(x, y, x, y), *others])
    settings = {**SETTINGS, "rounds": 8, "batch": 10, "lr": 0.3}
    run = Simulation(federation, Tailor(alone=40, close_epochs=1, momentum=0), NET, **settings).run()
    plain = Simulation(federation, Tailor(close_epochs=1, momentum=0), NET, **settings).run()
    assert plain.scores[0].accuracy < 0.5 < 0.9 < run.scores[0].accuracy
    for i in range(1, 5):
        assert torch.equal(run.state(i)["personal"], plain.state(i)["personal"])


def test_a_round_with_few_clients_counts_by_their_share_of_the_samples():
    simulation = Simulation(skewed(), Tailor(momentum=0.8), NET, rounds=6, join=0.4, **SETTINGS)
    w, v = simulation.server.state["model"].clone(), 0.0
    sizes, shares = [12, 9, 7], set()
    for _ in range(6):
        simulation.step()
        ((client, sent),) = simulation.traffic.up.items()
        share = max(sizes[client] / 28, 1 - 0.8)
        v = 0.8 * v + share * (sent["model"] - w)
        w = w + v
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-12)
        shares.add(share)
    assert len(shares) > 1


def test_without_momentum_few_clients_are_averaged_as_in_fedavg():
    settings = {**SETTINGS, "rounds": 3, "join": 0.4}
    ours = Simulation(skewed(), Tailor(hold=0, momentum=0), NET, **settings).run()
    assert torch.equal(
        ours.server.state["model"], Simulation(skewed(), FedAvg(), NET, **settings).run().server.state["model"]
    )
