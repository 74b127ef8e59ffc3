"""tailor: rounds, prior and close by hand, and what is left when parts are taken away."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize_scalar
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
    for classes, size in (([0, 1], 12), ([1, 2], 9), ([2], 7)):
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
    """w with α·log p added to the bias, and α, by SciPy."""
    counts = torch.bincount(y, minlength=3).double() + 0.5
    prior = (counts / counts.sum()).log()
    z = logits(w, x)
    share = minimize_scalar(
        lambda a: F.cross_entropy(z + a * prior, y).item(), bounds=(0, 1), method="bounded", options={"xatol": 1e-10}
    ).x
    return torch.cat([w[:54], w[54:] + share * prior]), share


def test_rounds_prior_and_close_by_hand():
    federation = skewed()
    simulation = Simulation(federation, Tailor(hold=2.0, close_epochs=6, averaged=3), NET, rounds=3, **SETTINGS)
    w, v = simulation.server.state["model"].clone(), 0.0
    data = [(c.train.x.double(), c.train.y) for c in federation.clients]
    sizes = torch.tensor([float(len(y)) for _, y in data], dtype=torch.float64)
    for _ in range(3):
        simulation.step()
        held = [2.0 * (torch.bincount(y, minlength=3) == 0).double() for _, y in data]
        sent = [w - 0.1 * gradient(w, x, y, h) for (x, y), h in zip(data, held, strict=True)]
        mean = sum(n * s for n, s in zip(sizes / sizes.sum(), sent, strict=True))
        v = 0.85 * v + mean - w
        w = w + v
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-12)
    simulation.step()
    assert simulation.finished
    for i, (x, y) in enumerate(data):
        begin, share = with_prior(w, x, y)
        assert abs(simulation.outcomes[i].logged["prior_weight"] - share) < 1e-6
        fitted, velocity, ends = begin, 0.0, []
        for _ in range(6):
            velocity = 0.9 * velocity + gradient(fitted, x, y, 0.0)
            fitted = fitted - 0.01 * velocity
            ends.append(fitted)
        expected = begin + 0.75 * (sum(ends[3:]) / 3 - begin)
        torch.testing.assert_close(simulation.state(i)["personal"], expected, rtol=0, atol=1e-7)  # SciPy's α


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
    close = {"close_epochs": 4, "close_lr": 0.1, "close_momentum": 0.0, "averaged": 1, "step": 1.0}
    ours = Simulation(skewed(), Tailor(hold=0, momentum=0, prior=False, **close), NET, rounds=2, **SETTINGS).run()
    theirs = Simulation(skewed(), FedAvgFT(ft_epochs=4), NET, rounds=2, **SETTINGS).run()
    for i in range(3):
        torch.testing.assert_close(ours.state(i)["personal"], theirs.state(i)["personal"], rtol=0, atol=1e-12)


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
