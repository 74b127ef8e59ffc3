"""Server optimizers: FedAvgM against torch.optim, FedAdagrad, FedAdam and FedYogi against Algorithm 2 of Reddi et al., in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtailor import FedTailorError, Simulation
from fedtailor.learning import weighted_mean
from fedtailor.learning.mixing import Reply
from fedtailor.nets.mlp import MLP

SETTINGS = {"dtype": "float64", "batch": 5, "lr": 0.1, "rounds": 3, "seed": 1, "engine": "inline"}
ETA, BETA1, BETA2, TAU = 0.03, 0.8, 0.95, 1e-2


def rounds_of(federation, **settings) -> tuple[Simulation, list[torch.Tensor], list[torch.Tensor]]:
    """A run of FedAvg, its models before, between and after its rounds, and the means of its rounds."""
    run = Simulation(federation, "fedavg", MLP(hidden=(4,)), **SETTINGS, **settings)
    models, means = [run.server.state["model"]], []
    while run.round < SETTINGS["rounds"]:
        run.step()
        replies = [Reply(i, run.outcomes[i].samples, up) for i, up in run.traffic.up.items()]
        means.append(weighted_mean(replies, "model"))
        models.append(run.server.state["model"])
    return run, models, means


def test_momentum_is_torchs_sgd_on_the_mean_as_a_gradient(federation):
    _, models, means = rounds_of(federation, server_optimizer="momentum", server_lr=0.7, server_momentum=0.6)
    w = nn.Parameter(models[0].clone())
    optimizer = torch.optim.SGD([w], lr=0.7, momentum=0.6)
    for mean, model in zip(means, models[1:], strict=True):
        w.grad = w.detach() - mean
        optimizer.step()
        torch.testing.assert_close(model, w.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_adaptive_optimizers_are_those_of_the_paper(federation, kind):
    options = {"server_lr": ETA, "server_momentum": BETA1, "server_beta2": BETA2, "server_tau": TAU}
    run, models, means = rounds_of(federation, server_optimizer=kind, **options)
    x = models[0].tolist()
    m, v = [0.0] * len(x), [TAU**2] * len(x)
    for mean, model in zip(means, models[1:], strict=True):
        for k, target in enumerate(mean.tolist()):
            delta = target - x[k]
            m[k] = BETA1 * m[k] + (1 - BETA1) * delta
            if kind == "adagrad":
                v[k] = v[k] + delta**2
            elif kind == "adam":
                v[k] = BETA2 * v[k] + (1 - BETA2) * delta**2
            else:
                v[k] = v[k] - (1 - BETA2) * delta**2 * ((v[k] > delta**2) - (v[k] < delta**2))
            x[k] = x[k] + ETA * m[k] / (v[k] ** 0.5 + TAU)
        torch.testing.assert_close(model, torch.tensor(x, dtype=torch.float64), rtol=0, atol=1e-12)
    assert sorted(run.server.state) == ["model", "server_optimizer.model.m", "server_optimizer.model.v"]
    assert {name for _, _, name in run.ledger.totals} == {"model"}


def test_no_optimizer_is_the_mean_itself_and_full_momentum_free_steps_are_too(federation):
    _, plain, means = rounds_of(federation)
    assert all(torch.equal(model, mean) for model, mean in zip(plain[1:], means, strict=True))
    _, stepped, _ = rounds_of(federation, server_optimizer="momentum", server_momentum=0.0)
    torch.testing.assert_close(stepped[-1], plain[-1], rtol=0, atol=1e-12)


def test_running_statistics_are_averaged_as_they_are(federation):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    settings = {**SETTINGS, "server_optimizer": "adam", "server_lr": 0.5, "bn_buffers": "average"}
    for method, entry in (("fedavg", "model"), ("fedper", "body")):
        run = Simulation(federation, method, module, **settings)
        before = run.server.state[entry]
        run.step()
        mean = weighted_mean([Reply(i, run.outcomes[i].samples, up) for i, up in run.traffic.up.items()], entry)
        after, statistics = run.server.state[entry], 12
        assert torch.equal(after[:statistics], mean[:statistics])
        assert not torch.isclose(after[statistics:], mean[statistics:]).all()
        assert not torch.equal(after[statistics:], before[statistics:])


def test_resuming_goes_on_with_the_state(federation):
    settings = {**SETTINGS, "server_optimizer": "yogi"}
    straight = Simulation(federation, "fedper", MLP(hidden=(4,)), **settings).run()
    begun = Simulation(federation, "fedper", MLP(hidden=(4,)), **settings)
    begun.step()
    resumed = Simulation(federation, "fedper", MLP(hidden=(4,)), **settings)
    resumed.restore(1, begun.server.state, begun.engine.states(), begun.metrics)
    resumed.run()
    assert all(torch.equal(tensor, resumed.server.state[name]) for name, tensor in straight.server.state.items())


def test_a_mean_by_clients_is_unweighted():
    replies = [Reply(0, 10, {"a": torch.tensor([1.0])}), Reply(1, 30, {"a": torch.tensor([3.0])})]
    assert weighted_mean(replies, "a").item() == 2.5
    assert weighted_mean(replies, "a", by="clients").item() == 2.0
    assert weighted_mean(replies, "a", by=[3, 1]).item() == 1.5


def test_a_method_that_does_not_average_refuses_it_in_a_sentence(federation):
    with pytest.raises(FedTailorError, match=r"'fedamp' does not do\. Leave it out"):
        Simulation(federation, "fedamp", MLP(hidden=(4,)), server_optimizer="adam")
