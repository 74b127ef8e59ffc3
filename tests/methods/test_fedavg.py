"""FedAvg and its kin against a few lines of plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedprox import FedProx
from fedtailor.methods.finetune import FedAvgFT, FedProxFT
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

FULL = 1000  # a batch size above every client's samples: one full-batch step an epoch
NET = MLP(hidden=[6])


def simulate(federation: Federation, method, **settings) -> Simulation:
    return Simulation(
        federation, method, NET, **{"dtype": "float64", "batch": FULL, "lr": 0.1, "rounds": 3, "seed": 3, **settings}
    )


def reference_step(
    simulation: Simulation, vector: torch.Tensor, client: int, lr: float, centre=None, mu: float = 0.0
) -> torch.Tensor:
    """One full-batch gradient step by hand, on tensors unpacked from the vector."""
    w1, b1, w2, b2 = (t.clone().requires_grad_() for t in simulation.server.net().all.named(vector).values())
    data = simulation.federation.clients[client].train
    logits = torch.relu(data.x.double() @ w1.T + b1) @ w2.T + b2
    loss = F.cross_entropy(logits, data.y)
    if centre is not None:
        flat = torch.cat([t.reshape(-1) for t in (w1, b1, w2, b2)])
        loss = loss + mu / 2 * (flat - centre).square().sum()
    loss.backward()
    return torch.cat([(t - lr * t.grad).detach().reshape(-1) for t in (w1, b1, w2, b2)])


def test_one_round_is_a_gradient_step_averaged_by_samples(federation):
    simulation = simulate(federation, FedAvg())
    initial = simulation.server.state["model"].clone()
    simulation.step()
    sizes = [len(c.train) for c in federation.clients]
    expected = sum(n / sum(sizes) * reference_step(simulation, initial, i, 0.1) for i, n in enumerate(sizes))
    torch.testing.assert_close(simulation.server.state["model"], expected, rtol=0, atol=1e-12)


def test_fedprox_pulls_to_the_received_model(federation):
    simulation = simulate(federation, FedProx(mu=0.7), epochs=2)
    start = simulation.server.state["model"].clone()
    simulation.step()
    for i, up in simulation.traffic.up.items():
        expected = start
        for _ in range(2):
            expected = reference_step(simulation, expected, i, 0.1, centre=start, mu=0.7)
        torch.testing.assert_close(up["model"], expected, rtol=0, atol=1e-12)


def test_fedprox_without_pull_is_fedavg_to_the_bit(federation):
    models = [
        simulate(federation, m, batch=4, dtype="float32").run().server.state["model"]
        for m in (FedAvg(), FedProx(mu=0.0))
    ]
    assert torch.equal(*models)


def test_fedprox_with_pull_is_not_fedavg(federation):
    models = [simulate(federation, m, batch=4).run().server.state["model"] for m in (FedAvg(), FedProx(mu=0.5))]
    assert not torch.allclose(*models)


def test_local_trains_alone_and_sends_nothing(federation):
    simulation = simulate(federation, Local(), rounds=1)
    initial = simulation.state(2)["model"]
    simulation.run()
    torch.testing.assert_close(
        simulation.state(2)["model"], reference_step(simulation, initial, 2, 0.1), rtol=0, atol=1e-12
    )
    assert simulation.traffic.up[2] == {}
    assert simulation.metrics[-1]["bytes_up"] == simulation.metrics[-1]["bytes_down"] == 0


@pytest.mark.parametrize("method", [FedAvgFT(ft_epochs=2), FedProxFT(ft_epochs=2, mu=0.5)])
def test_fine_tuning_starts_from_the_final_global_model(federation, method):
    simulation = simulate(federation, method)
    records = list(simulation)
    assert [r["phase"] for r in records] == ["round"] * 3 + ["finish"] * 2
    for i in range(4):
        expected = simulation.server.state["model"]
        for _ in range(2):
            expected = reference_step(simulation, expected, i, 0.1)  # without a proximal term
        torch.testing.assert_close(simulation.state(i)["personal"], expected, rtol=0, atol=1e-12)


def test_the_global_model_is_what_everyone_is_scored_with(federation):
    simulation = simulate(federation, FedAvg(), join=0.5).run()
    named = simulation.server.net().all.named(simulation.server.state["model"])
    w1, b1, w2, b2 = named.values()
    for i, score in simulation.scores.items():
        test = federation.clients[i].test
        right = ((torch.relu(test.x.double() @ w1.T + b1) @ w2.T + b2).argmax(1) == test.y).sum()
        assert score.correct == right
