"""Local training with every optimizer, against torch.optim on a plain module, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Protocol, Simulation
from fedtailor.engines.worker import Worker
from fedtailor.learning import Client, Pull
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.nets.mlp import MLP

LR = 0.05
KINDS = {
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.1},
    "both": {"momentum": 0.5, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "adam with decay": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "clip": {"clip_norm": 0.3},
    "clip and adam": {"optimizer": "adam", "clip_norm": 0.3},
}


def worker_of(federation: Federation, method=None, **settings) -> Worker:
    protocol = Protocol(**{"dtype": "float64", "batch": 5, "lr": LR, "epochs": 2, **settings})
    return Worker(federation, method or FedAvg(), MLP(hidden=(6,)), None, protocol)


def client_of(federation: Federation, round: int = 1, **settings) -> Client:
    return worker_of(federation, **settings)._client(2, round, "fit")


def reference_optimizer(parameters: list[nn.Parameter], settings: dict) -> torch.optim.Optimizer:
    decay = settings.get("weight_decay", 0.0)
    match settings.get("optimizer", "sgd"):
        case "adam":
            return torch.optim.Adam(parameters, lr=LR, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=LR, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=LR, momentum=settings.get("momentum", 0.0), weight_decay=decay)


def trained_by_hand(module: nn.Module, optimizer: torch.optim.Optimizer, batches, settings: dict, loss=None) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for x, y in batches:
        optimizer.zero_grad()
        value = F.cross_entropy(module(x), y)
        (value if loss is None else value + loss()).backward()
        if settings.get("clip_norm"):
            nn.utils.clip_grad_norm_(parameters, settings["clip_norm"])
        optimizer.step()


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_net_trains_as_with_torch_optim(federation, kind):
    ours, theirs = client_of(federation, **KINDS[kind]), client_of(federation, **KINDS[kind])
    net, module = ours.net(), theirs.net().plain()
    before = net.all.vector
    ours.train(net.all)
    trained_by_hand(
        module, reference_optimizer([*module.parameters()], KINDS[kind]), theirs.batches(purpose="all"), KINDS[kind]
    )
    close(net.all.vector, flat(module))
    assert (net.all.vector - before).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_on_features_trains_as_with_torch_optim_and_a_frozen_body(federation, kind):
    ours, theirs = client_of(federation, **KINDS[kind]), client_of(federation, **KINDS[kind])
    net, module = ours.net(), theirs.net().plain()
    ours.train(net.head)
    trained_by_hand(
        module, reference_optimizer([*module.fc.parameters()], KINDS[kind]), theirs.batches(purpose="head"), KINDS[kind]
    )
    close(net.all.vector, flat(module))


@pytest.mark.parametrize("kind", ["plain", *KINDS])
@pytest.mark.parametrize("pulled", ["all", "body", "head"])
def test_a_pull_on_some_of_what_trains_is_a_term_of_the_loss(federation, kind, pulled):
    settings = KINDS.get(kind, {})
    ours, theirs = client_of(federation, **settings), client_of(federation, **settings)
    net, module = ours.net(), theirs.net().plain()
    part = getattr(net, pulled)
    centre = torch.linspace(-1, 1, len(part), dtype=torch.float64)
    ours.train(net.all, pull=Pull(centre, 0.3, part))
    drawn = {"all": module, "body": module.hidden, "head": module.fc}[pulled]

    def proximal() -> torch.Tensor:
        w = torch.cat([p.reshape(-1) for p in drawn.parameters()])
        return 0.3 / 2 * (w - centre).square().sum()

    optimizer = reference_optimizer([*module.parameters()], settings)
    trained_by_hand(module, optimizer, theirs.batches(purpose="all"), settings, proximal)
    close(net.all.vector, flat(module))


@pytest.mark.parametrize("kind", ["plain", "both", "adam"])
def test_a_proximal_term_in_the_loss_has_the_gradient_of_a_pull(federation, kind):
    settings = KINDS.get(kind, {})
    pulled, written = client_of(federation, **settings), client_of(federation, **settings)
    centre = torch.ones(len(pulled.net().body), dtype=torch.float64)

    def loss(net, x, y):
        return F.cross_entropy(net(x), y) + 0.7 / 2 * (net.body.weights - centre).square().sum()

    one = pulled.net()
    pulled.train(one.all, pull=Pull(centre, 0.7, one.body))
    other = written.net()
    written.train(other.all, loss=loss)
    close(one.all.vector, other.all.vector)


@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_a_vector_read_in_a_loss_is_refused(federation, part):
    client = client_of(federation)
    net = client.net()
    with pytest.raises(RuntimeError, match=rf"use net\.{part}\.weights"):
        client.train(net.all, loss=lambda net, x, y: getattr(net, part).vector.square().sum())
    assert len(getattr(net, part).vector)  # and outside of one it is not


def test_a_pull_on_what_does_not_train_is_refused(federation):
    client = client_of(federation)
    net = client.net()
    with pytest.raises(ValueError, match="pull on the body"):
        client.train(net.head, pull=Pull(net.body.vector, 0.1, net.body))


@pytest.mark.parametrize("kind", ["plain", *KINDS])
def test_a_loop_of_ones_own_has_the_steps_of_train(federation, kind):
    settings = KINDS.get(kind, {})
    ours, theirs = client_of(federation, **settings), client_of(federation, **settings)
    net, other = ours.net(), theirs.net()
    ours.train(net.all)
    for x, y, step in theirs.steps(theirs.batches(purpose="all"), other.all):
        assert step(theirs.loss(other(x), y))
    assert torch.equal(net.all.vector, other.all.vector)
    assert ours.losses == theirs.losses


def test_parts_of_one_loop_have_optimizers_and_rates_of_their_own(federation):
    client, settings = client_of(federation, momentum=0.9), {"momentum": 0.9}
    one, two = client.net("one"), client.net("two")
    modules = one.plain(), two.plain()
    optimizers = [reference_optimizer([*m.parameters()], settings) for m in modules]
    optimizers[1].param_groups[0]["lr"] = 0.2
    batches = list(client.batches(2))
    for x, y, step in client.steps(batches, one.all, two.all):
        step(client.loss(one(x), y), one.all)
        step(None, two.all, gradient=2 * two.all.gradient(client.loss(two(x), y)), lr=0.2)
    trained_by_hand(modules[0], optimizers[0], batches, settings)
    for x, y in batches:
        optimizers[1].zero_grad()
        (2 * F.cross_entropy(modules[1](x), y)).backward()
        optimizers[1].step()
    close(one.all.vector, flat(modules[0]))
    close(two.all.vector, flat(modules[1]))


def test_a_loop_of_several_parts_must_name_the_one_that_steps(federation):
    client = client_of(federation)
    net = client.net()
    x, y, step = next(client.steps(client.batches(1), net.body, net.head))
    loss = client.loss(net(x), y)
    with pytest.raises(ValueError, match=r"name the one that steps: step\(loss, part\)"):
        step(loss)
    _, _, step = next(client.steps(client.batches(1), net.body))
    with pytest.raises(ValueError, match="the loop does not train the head"):
        step(loss, net.head)


def two_rounds(federation, **settings) -> tuple[Worker, torch.Tensor]:
    worker = worker_of(federation, **settings)
    sent = worker._client(2, 1, "fit").net().all.vector
    for round in (1, 2):
        sent = worker.fit(2, round, {"model": sent}, evaluate=False).up["model"]
    return worker, sent


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("kept", [True, False])
def test_state_is_fresh_each_round_or_kept_at_the_client(federation, kind, kept):
    settings = KINDS[kind]
    worker, ours = two_rounds(federation, optimizer_state="kept" if kept else "fresh", **settings)
    module = worker_of(federation)._client(2, 1, "fit").net().plain()
    optimizer = reference_optimizer([*module.parameters()], settings)
    for round in (1, 2):
        if not kept:
            optimizer = reference_optimizer([*module.parameters()], settings)
        trained_by_hand(module, optimizer, worker._client(2, round, "fit").batches(purpose="all"), settings)
    close(ours, flat(module))
    names = {"momentum": ["momentum_buffer"], "adam": ["exp_avg", "exp_avg_sq", "step"]}[kind]
    assert sorted(worker.state(2)) == ([f"optimizer.model.all.{name}" for name in names] if kept else [])


def test_a_phase_that_is_undone_leaves_the_kept_state_as_it_was(federation):
    worker = worker_of(federation, momentum=0.9, optimizer_state="kept")
    client = worker._client(2, 1, "fit")
    net = client.net()
    client.train(net.all)
    kept = {name: tensor.clone() for name, tensor in client.state.items()}
    client.train(net.all, loss=lambda net, x, y: net.all.parameters[0].sum() * 1e308, lr=1e308)
    assert {name: torch.equal(tensor, client.state[name]) for name, tensor in kept.items()} == dict.fromkeys(kept, True)


@pytest.mark.parametrize("method", ["fedavg", "fedafk", "apfl", "fedrep", "pfedme"])
def test_kept_state_is_the_same_in_processes_and_after_a_resume(federation, method):
    def run(**more) -> Simulation:
        settings = {"rounds": 4, "join": 0.5, "seed": 3, "optimizer": "adam", "optimizer_state": "kept", "lr": 0.01}
        return Simulation(federation, method, MLP(hidden=(4,)), batch=4, **settings, **more)

    straight = run(engine="inline").run()
    assert any(name.startswith("optimizer.") for i in range(4) for name in straight.state(i))
    many = run(engine="processes", workers=2).run()
    begun = run(engine="inline")
    begun.step()
    begun.step()
    resumed = run(engine="inline")
    resumed.restore(2, copy.deepcopy(begun.server.state), copy.deepcopy(begun.engine.states()), begun.metrics)
    resumed.run()
    for other in (many, resumed):
        assert [r["train_loss"] for r in other.metrics] == [r["train_loss"] for r in straight.metrics]
        for i in range(4):
            assert straight.state(i).keys() == other.state(i).keys()
            assert all(torch.equal(tensor, other.state(i)[name]) for name, tensor in straight.state(i).items())
    many.close()


def test_kept_state_never_travels(federation):
    run = Simulation(federation, "fedavg", MLP(hidden=(4,)), rounds=2, optimizer="adam", optimizer_state="kept").run()
    assert {name for _, _, name in run.ledger.totals} == {"model"}


def test_closing_steps_use_the_base_learning_rate(federation):
    """The last round of a step schedule trains at a millionth of lr; fine-tuning moves as far as without a schedule."""
    settings = {"rounds": 7, "lr_schedule": "step", "lr_step": 1, "lr_decay": 0.1}
    worker = worker_of(federation, FedAvgFT(ft_epochs=1), **settings)
    start = worker._client(2, 1, "fit").net().all.vector
    late = worker.fit(2, 7, {"model": start}, evaluate=False).up["model"]
    assert (late - start).norm() < 1e-5 * start.norm()
    worker.finish(2, 1, {"model": start})
    plain = worker_of(federation, FedAvgFT(ft_epochs=1))
    plain.finish(2, 1, {"model": start})
    assert torch.equal(worker.state(2)["personal"], plain.state(2)["personal"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 belongs to optimizer = 'sgd'"),
        ({"lr_decay": 0.5}, "lr_decay = 0.5 belongs to lr_schedule"),
        ({"lr_decay": 0.5, "lr_schedule": "cosine"}, "not to 'cosine'"),
        ({"server_lr": 0.1}, "needs a server_optimizer"),
    ],
)
def test_options_without_effect_are_refused(settings, match):
    with pytest.raises(FedTailorError, match=match):
        Protocol(**settings)
