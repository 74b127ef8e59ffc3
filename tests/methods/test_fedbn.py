"""FedBN: normalisation layers and their statistics never leave a client; the rest is FedAvg's."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from fedtailor import FedTailorError, Simulation
from fedtailor.learning import weighted_mean
from fedtailor.learning.mixing import Reply
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedbn import FedBN
from fedtailor.nets.mlp import MLP

SETTINGS = {"batch": 4, "lr": 0.1, "rounds": 3, "seed": 1, "engine": "inline"}
NORM, ALL = 6 + 6, 5 * 6 + 6 + 12 + 6 * 3 + 3


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_it_is_fedavg_that_keeps_the_norm(federation, buffers):
    ours, plain = (
        Simulation(federation, m, normed(), bn_buffers=buffers, **SETTINGS).run()
        for m in (FedBN(), FedAvg(keep=["norm"]))
    )
    assert equal(ours.server.state, plain.server.state)
    assert all(equal(ours.state(i), plain.state(i)) for i in range(4))
    assert [m["accuracy"] for m in ours.metrics] == [m["accuracy"] for m in plain.metrics]


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_neither_norm_nor_statistics_travel(federation, buffers):
    run = Simulation(federation, FedBN(), normed(), bn_buffers=buffers, **SETTINGS).run()
    assert {(e.name, e.bytes) for e in run.ledger.last} == {("model", 4 * (ALL - NORM))}
    models = [run.personal(i) for i in range(4)]
    for name in ("weight", "bias", "running_mean", "running_var"):
        values = [getattr(model[1], name) for model in models]
        assert not any(torch.equal(values[0], other) for other in values[1:])
    for layer in (0, 3):
        assert all(torch.equal(models[0][layer].weight, other[layer].weight) for other in models[1:])


def test_one_round_by_hand(federation):
    settings = {**SETTINGS, "dtype": "float64", "batch": 1000, "rounds": 1}
    run = Simulation(federation, FedBN(), normed(), **settings)
    run.step()
    replies = []
    for i, client in enumerate(federation.clients):
        module = normed().double().train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        nn.functional.cross_entropy(module(client.train.x.double()), client.train.y).backward()
        optimizer.step()
        kept = torch.cat([module[1].weight, module[1].bias]).detach()
        torch.testing.assert_close(run.state(i)["norm"], kept, rtol=0, atol=1e-12)
        sent = torch.cat([p.detach().flatten() for layer in (0, 3) for p in module[layer].parameters()])
        replies.append(Reply(i, len(client.train), {"model": sent}))
    torch.testing.assert_close(run.server.state["model"], weighted_mean(replies, "model"), rtol=0, atol=1e-12)


def test_a_net_without_normalisation_layers_makes_it_fedavg_and_it_says_so(federation, caplog):
    with caplog.at_level(logging.WARNING):
        ours = Simulation(federation, FedBN(), MLP(hidden=(4,)), **SETTINGS).run()
    assert "the net has no part 'norm' to keep, so all of the model is shared" in caplog.text
    plain = Simulation(federation, FedAvg(), MLP(hidden=(4,)), **SETTINGS).run()
    assert equal(ours.server.state, plain.server.state)


def test_a_server_optimizer_steps_on_what_is_shared_and_not_on_statistics(federation):
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    settings = {**SETTINGS, "server_optimizer": "adam", "server_lr": 0.5, "bn_buffers": "average"}
    run = Simulation(federation, FedAvg(keep=["1"]), module, **settings)
    run.step()
    mean = weighted_mean([Reply(i, run.outcomes[i].samples, up) for i, up in run.traffic.up.items()], "model")
    after, statistics = run.server.state["model"], 12  # those of the second norm, which is shared
    assert torch.equal(after[:statistics], mean[:statistics])
    assert (after[statistics:] - mean[statistics:]).norm() > 1


def test_it_runs_with_other_optimizers_and_goes_on_after_an_interruption(federation):
    settings = {**SETTINGS, "optimizer": "adam", "lr": 0.01, "optimizer_state": "kept"}
    straight = Simulation(federation, FedBN(), normed(), **settings).run()
    begun = Simulation(federation, FedBN(), normed(), **settings)
    begun.step()
    resumed = Simulation(federation, FedBN(), normed(), **settings)
    resumed.restore(1, begun.server.state, begun.engine.states(), begun.metrics)
    resumed.run()
    assert equal(straight.server.state, resumed.server.state)
    assert all(equal(straight.state(i), resumed.state(i)) for i in range(4))


def test_an_unknown_part_is_refused_before_the_first_round(federation):
    with pytest.raises(FedTailorError, match=r"No part of the net is called 'adapter'"):
        Simulation(federation, FedAvg(keep=["adapter"]), normed(), **SETTINGS)


def test_it_is_described(fedtailor):
    text = fedtailor("methods", "fedbn")
    assert "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization (2021)" in text
    assert "Kept by the client: norm" in text
    assert "method.keep" in text
