"""Runs of every task: against hand-written loops, every method on what it claims, metrics, validation, early stopping."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Config, Federation, Simulation
from fedtailor.analysis.results import read_result
from fedtailor.analysis.significance import choose_baseline
from fedtailor.data.client_data import Split
from fedtailor.errors import FedTailorError
from fedtailor.experiment.run import Stop, resume, start
from fedtailor.learning.metrics import METRICS
from fedtailor.methods import methods
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.cnn import CNN
from fedtailor.nets.mlp import MLP
from fedtailor.report.sheets import as_csv
from fedtailor.report.tables import brief_sheet

EVERY = sorted(name for name, cls in methods.classes.items() if cls.__module__.startswith("fedtailor.methods."))
TRANSFER = {"akt_steps": 3, "akt_batch": 8}
OPTIONS = {"perada": TRANSFER, "heart": {**TRANSFER, "pgd_steps": 2}}
SIZES = (12, 7, 20, 9)


def labels(kind: str, rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Labels that can be learned from the first two entries of a sample."""
    noisy = x.reshape(len(x), -1)[:, :2] + 0.3 * rng.normal(size=(len(x), 2))
    return {
        "multiclass": (noisy[:, 0] > 0).astype(int) + (noisy[:, 1] > 0),
        "binary": noisy[:, 0] > 0,
        "multilabel": (noisy > 0).astype(int),
        "regression": noisy.astype(np.float32),
    }[kind]


def federated(kind: str, shape: tuple[int, ...] = (5,)) -> Federation:
    rng = np.random.default_rng(4)
    parts = []
    for size in SIZES:
        x = rng.normal(size=(size + 6, *shape)).astype(np.float32)
        y = labels(kind, rng, x)
        parts.append((x[:size], y[:size], x[size:], y[size:]))
    return Federation.from_clients(parts)


def simulate(federation: Federation, method="fedavg", **settings) -> Simulation:
    given = {"rounds": 3, "lr": 0.1, "batch": 4, "seed": 3, "engine": "inline", **settings}
    return Simulation(federation, method, MLP(hidden=(6,)), **given)


def numbers(record: dict) -> dict:
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


# -- against hand-written loops ------------------------------------------------------------------------------------------------------


def by_hand(kind: str, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if kind == "regression":
        return (outputs - y).square().mean()
    p = torch.sigmoid(outputs)
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_three_rounds_of_fedavg_are_the_hand_written_loop(kind):
    federation = federated(kind)
    run = simulate(federation, batch=1000, epochs=2, dtype="float64")
    model = [t.clone() for t in run.server.net().all.named(run.server.state["model"]).values()]
    sizes = torch.tensor(SIZES).double()
    for _ in range(3):
        replies = []
        for client in federation.clients:
            weights = [t.clone().requires_grad_() for t in model]
            for _ in range(2):
                w1, b1, w2, b2 = weights
                outputs = torch.relu(client.train.x.double() @ w1.T + b1) @ w2.T + b2
                gradients = torch.autograd.grad(by_hand(kind, outputs, client.train.y.double()), weights)
                weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
            replies.append([w.detach() for w in weights])
        model = [torch.einsum("c,c...->...", sizes / sizes.sum(), torch.stack(w)) for w in zip(*replies, strict=True)]
    run.run()
    expected = torch.cat([t.reshape(-1) for t in model])
    torch.testing.assert_close(run.server.state["model"], expected, rtol=0, atol=1e-12)
    w1, b1, w2, b2 = model
    tests = [(c.test.x.double(), c.test.y.double()) for c in federation.clients]
    outputs = [torch.relu(x @ w1.T + b1) @ w2.T + b2 for x, _ in tests]
    losses = [by_hand(kind, out, y).item() for out, (_, y) in zip(outputs, tests, strict=True)]
    assert run.metrics[-1]["loss"] == pytest.approx(np.mean(losses), abs=1e-12)  # all have six test samples
    if kind == "regression":
        errors = np.sqrt(losses)
        assert run.metrics[-1]["rmse"] == pytest.approx(math.sqrt(np.mean(losses)), abs=1e-12)
        assert run.metrics[-1]["rmse_mean"] == pytest.approx(errors.mean(), abs=1e-12)
        assert run.metrics[-1]["rmse_worst_decile"] == pytest.approx(errors.max(), abs=1e-12)
        assert run.metrics[-1]["rmse_spread"] == pytest.approx(errors.std(), abs=1e-12)


@pytest.mark.parametrize("weights", ["balanced", (2.0, 0.5, 1.0)])
def test_class_weights_are_those_of_the_weighted_loss(weights):
    federation = federated("multiclass")
    run = simulate(federation, "local", batch=1000, dtype="float64", rounds=1, class_weights=weights)
    start = run.server.net().all.named(run.server.net().all.vector)
    run.run()
    for i, client in enumerate(federation.clients):
        w1, b1, w2, b2 = (t.clone().requires_grad_() for t in start.values())
        y = client.train.y
        counts = torch.bincount(y, minlength=3).double()
        given = len(y) / ((counts > 0).sum() * counts) if weights == "balanced" else torch.tensor(weights).double()
        logits = torch.relu(client.train.x.double() @ w1.T + b1) @ w2.T + b2
        loss = F.cross_entropy(logits, y, weight=given.nan_to_num(1.0, 1.0))
        stepped = [
            (t - 0.1 * g).detach().reshape(-1)
            for t, g in zip((w1, b1, w2, b2), torch.autograd.grad(loss, (w1, b1, w2, b2)), strict=True)
        ]
        torch.testing.assert_close(run.state(i)["model"], torch.cat(stepped), rtol=0, atol=1e-12)


def test_a_head_on_features_takes_weights_into_account():
    federation = federated("multiclass")
    plain, weighted = (simulate(federation, "fedrep", class_weights=w).run() for w in ("none", (1.0, 9.0, 1.0)))
    assert not torch.equal(plain.state(0)["head"], weighted.state(0)["head"])
    same = simulate(federation, "fedrep", class_weights=(1.0, 1.0, 1.0), dtype="float64").run()
    written_out = simulate(federation, "fedrep", dtype="float64").run()
    torch.testing.assert_close(same.state(0)["head"], written_out.state(0)["head"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "weights"), [("regression", "balanced"), ("multiclass", (1.0, 2.0))])
def test_class_weights_that_do_not_fit_are_refused(kind, weights):
    with pytest.raises(FedTailorError, match="class_weights"):
        simulate(federated(kind), class_weights=weights)


# -- every method on every task it claims --------------------------------------------------------------------------------------------


def claimed() -> list[tuple[str, str]]:
    return [(name, kind) for name in EVERY for kind in methods.classes[name].tasks]


TRAINING = {"lr": 0.1, "batch": 4, "seed": 3, "engine": "inline", "join": 0.75, "eval_closing": "each"}


@cache
def self_tested(kind: str, stages: bool) -> tuple[Federation, Architecture, float]:
    """Clients tested on what they train on (so few samples teach nothing of others), a net, and its loss before training."""
    federation = federated(kind, (1, 4, 4) if stages else (5,))
    clients = [dataclasses.replace(c, test=c.train) for c in federation.clients]
    federation = dataclasses.replace(federation, clients=clients)
    net = CNN(conv1=2, conv2=2, hidden=4) if stages else MLP(hidden=(6,))
    untrained = Simulation(federation, "local", net, **{**TRAINING, "lr": 1e-9}, rounds=1).run()
    return federation, net, untrained.metrics[-1]["loss"]


@pytest.mark.parametrize(("name", "kind"), claimed())
def test_every_method_learns_every_task_it_claims(name, kind):
    federation, net, untrained = self_tested(kind, stages=name == "heart")
    if name in OPTIONS:
        x = torch.randn(8, *federation.shape)
        federation = dataclasses.replace(federation, server=Split(x, torch.arange(8) % 3))
    options = dict(OPTIONS.get(name, {}))
    if any(f.name == "ft_epochs" for f in dataclasses.fields(methods.classes[name])):
        options["ft_epochs"] = 2
    run = Simulation(federation, methods.build(name, options), net, **TRAINING, rounds=3).run()
    assert all(math.isfinite(r["loss"]) for r in run.metrics)
    outputs = run.personal(0)(federation.clients[0].test.x)
    assert outputs.shape == (SIZES[0], federation.task.outputs)
    assert min(r["loss"] for r in run.metrics) < untrained


@pytest.mark.parametrize("name", ["fedproto", "pfedfda", "perada"])
def test_a_method_that_needs_classes_says_so_before_training(name):
    with pytest.raises(FedTailorError, match=f"'{name}' needs a multiclass task, but this one is regression.*fedavg"):
        simulate(federated("regression"), name)


def test_binary_and_two_classes_learn_the_same():
    two = federated("binary")
    classes = dataclasses.replace(two, description=dataclasses.replace(two.description, kind="multiclass"))
    accuracies = [simulate(f, lr=0.3, rounds=20).run().metrics[-1]["accuracy"] for f in (two, classes)]
    assert min(accuracies) > 0.7


# -- metrics -------------------------------------------------------------------------------------------------------------------------


def test_asked_metrics_are_reported_like_accuracy_and_accuracy_stays_to_the_bit():
    federation = federated("multiclass")
    plain = simulate(federation).run()
    run = simulate(federation, metrics=["auroc", "log_loss"]).run()
    for before, after in zip(plain.metrics, run.metrics, strict=True):
        assert numbers(before).items() <= numbers(after).items()
    last = run.metrics[-1]
    outputs = torch.cat([run.personal(i)(c.test.x) for i, c in enumerate(federation.clients)]).detach()
    y = torch.cat([c.test.y for c in federation.clients])
    assert last["auroc"] == pytest.approx(METRICS["auroc"].of(federation.task, y, outputs), abs=1e-12)
    assert last["log_loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert {"auroc_mean", "auroc_spread", "auroc_worst_decile"} <= last.keys()


def test_where_a_metric_is_undefined_the_client_is_left_out_and_counted():
    federation = federated("binary")
    one = federation.clients[1]
    alike = dataclasses.replace(one, test=Split(one.test.x, torch.ones_like(one.test.y)))
    federation.clients[1] = alike
    run = simulate(federation, metrics=("auroc",), rounds=1).run()
    values = [s.value("auroc") for s in run.scores.values()]
    assert math.isnan(values[1])
    assert run.metrics[-1]["auroc_undefined"] == 1
    assert run.metrics[-1]["auroc_mean"] == pytest.approx(np.nanmean(values))
    assert math.isfinite(run.metrics[-1]["auroc"])  # of all samples together it is defined


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_processes_give_the_same_metrics_to_the_bit(kind):
    asked = ["auroc", "confusion"] if kind == "multiclass" else ["r2", largest_error]
    settings = {"metrics": asked, "validation": 0.3}
    one = simulate(federated(kind), **settings).run()
    many = simulate(federated(kind), **settings, engine="processes", workers=2).run()
    assert [numbers(r) for r in many.metrics] == [numbers(r) for r in one.metrics]
    many.close()


def largest_error(y: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.abs(y - outputs).max())


def test_the_named_metric_selects_the_best_round():
    run = simulate(federated("regression"), rounds=6, lr=0.6, select_by="mae").run()
    errors = [r["mae"] for r in run.metrics]
    assert run.metrics[-1]["best_mae"] == min(errors)
    assert run.metrics[-1]["best_round"] == 1 + errors.index(min(errors))
    with pytest.raises(FedTailorError, match="does not fit a regression task"):
        simulate(federated("regression"), select_by="auroc")


# -- validation and early stopping ---------------------------------------------------------------------------------------------------


def test_the_best_round_is_chosen_on_validation_samples_and_told_on_test_samples():
    run = simulate(federated("multiclass"), rounds=8, lr=0.5, validation=0.4).run()
    chosen = [r["validation_accuracy"] for r in run.metrics]
    best = chosen.index(max(chosen))
    assert run.metrics[-1]["best_round"] == best + 1
    assert run.metrics[-1]["best_accuracy"] == run.metrics[best]["accuracy"]
    assert run.server.sizes == [n - int(0.4 * n) for n in SIZES]
    held = sum(int(0.4 * n) for n in SIZES)
    assert sum(s.validation.total for s in run.scores.values()) == held


def test_patience_without_validation_is_refused():
    with pytest.raises(FedTailorError, match=r"validation=0\.2"):
        simulate(federated("multiclass"), patience=2)


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_early_stopping_and_closing_steps_survive_an_interruption_to_the_bit(tmp_path, engine):
    words = ["method=fedavg-ft", "method.ft_epochs=2", "data=digits", "clients=4", "net=mlp", "rounds=40", "lr=0.8"]
    words += [
        "validation=0.2",
        "patience=2",
        "checkpoint_every=1",
        f"engine={engine}",
        "workers=2",
        "data.fraction=0.1",
    ]
    config = Config.load(None, words)
    whole = start(config, tmp_path / "whole")
    rounds = [r for r in whole.metrics if r["phase"] == "round"]
    assert 3 <= len(rounds) < 40
    best = max(range(len(rounds)), key=lambda k: rounds[k]["validation_accuracy"])
    assert len(rounds) == best + 1 + 2
    assert [r["phase"] for r in whole.metrics[len(rounds) :]] == ["finish"] * 2
    for last in (1, len(rounds)):
        path, stop = tmp_path / f"cut-{last}", Stop()
        start(
            config,
            path,
            [lambda record, last=last, stop=stop: stop.__setattr__("asked", record["round"] == last)],
            stop,
        )
        resume(path)
        assert _told(path) == _told(tmp_path / "whole")
    whole.close()


def _told(path):
    return [numbers(json.loads(line)) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_holds_metrics_and_confusion_by_client(tmp_path):
    words = ["method=fedavg", "data=digits", "clients=3", "net=mlp", "rounds=1", "data.fraction=0.1", "engine=inline"]
    run = start(Config.load(None, [*words, "metrics=f1,confusion"]), tmp_path / "run")
    line = json.loads((tmp_path / "run" / "clients.jsonl").read_text().splitlines()[-1])
    for i, table in enumerate(line["confusion"]):
        assert np.trace(table) == run.scores[i].correct
        assert np.sum(table) == run.scores[i].total
    assert line["f1"] == [s.value("f1") for s in run.scores.values()]
    header = (tmp_path / "run" / "clients.csv").read_text().splitlines()[0]
    assert header == "client,name,train_samples,test_samples,accuracy,f1,loss,bytes_up,bytes_down"
    assert Config.load(tmp_path / "run" / "config.toml").settings.metrics == ("f1", "confusion")


def test_a_regression_from_a_table_runs_into_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["who,a,b,price"] + [f"{'xyz'[i % 3]},{a},{b},{a - b}" for i, (a, b) in enumerate(rng.normal(size=(60, 2)))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    words = [
        "method=fedper",
        "data=table",
        f"data.path={tmp_path}/t.csv",
        "data.label=price",
        "data.client=who",
        "rounds=2",
    ]
    run = start(Config.load(None, [*words, "engine=inline"]), tmp_path / "run")
    assert run.metrics[-1]["select_by"] == "rmse"
    assert not (tmp_path / "run" / "labels.json").exists()
    result = read_result(tmp_path / "run")
    assert result.clients().tolist() == [s.value("rmse") for s in run.scores.values()]
    header, row = as_csv(brief_sheet([result])).splitlines()
    assert header.startswith("method,RMSE (mean of clients),best round (chosen on test data),worst decile")
    assert row.split(",")[1] == f"{run.metrics[-1]['rmse_mean']:.4g}"
    worse = dataclasses.replace(result, records=[{**r, "rmse_mean": r["rmse_mean"] + 1} for r in result.records])
    assert choose_baseline({"worse": [worse], "better": [result]}, result.metric) == "better"
