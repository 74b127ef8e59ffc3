"""Clients side by side: the numbers of one client after the other, up to rounding, whatever the company."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from fedtailor import Federation, Simulation
from fedtailor.engines import stack
from fedtailor.learning.descent import SKIPPED
from fedtailor.learning.losses import NearPrototypes
from fedtailor.methods.base import Method, methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.lenet import SmallLeNet
from fedtailor.nets.mlp import MLP

SIZES = (1, 3, 7, 10, 12, 25, 31, 40, 40)  # below, at and above a batch of 8; some alike


def ragged(task: str | None = None, shape: tuple[int, ...] = (5,)) -> Federation:
    """Clients of different sizes, one of which has a single class; each has three classes, outputs or labels at most."""
    generator = np.random.default_rng(0)

    def draw(n: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        x = generator.normal(size=(n, *shape)).astype(np.float32)
        flat = x.reshape(n, -1)
        if task == "regression":
            return x, flat[:, :2] * 2 + 1
        if task == "multilabel":
            return x, (flat[:, :3] > 0).astype(np.float32)
        classes = 2 if task == "binary" else 3
        y = ((flat[:, 0] > 0).astype(int) + (flat[:, 1] > 0.5)).clip(max=classes - 1)
        return x, np.zeros_like(y) + 1 if client in (1, 6) else y

    parts = [(*draw(n, i), *draw(9 + i, 2)) for i, n in enumerate(SIZES)]
    return Federation.from_clients(parts, task=task)  # type: ignore[arg-type]


def finished(engine: str, method: Any, federation: Federation | None = None, **options: Any) -> Simulation:
    defaults = {"rounds": 2, "epochs": 2, "batch": 8, "lr": 0.05, "seed": 1, "net": MLP(hidden=(7,)), "workers": 1}
    defaults |= {"dtype": "float64", "dropout": 0.2}
    with Simulation(
        ragged() if federation is None else federation, method, engine=engine, **{**defaults, **options}
    ) as run:
        run.run()
        run.kept = tensors(run)  # type: ignore[attr-defined]
    return run


def tensors(run: Simulation) -> dict[str, Tensor]:
    states = {f"{i}.{name}": t for i in run.everyone for name, t in run.state(i).items()}
    return states | {f"server.{name}": t for name, t in run.server.state.items()}


def assert_equal(one: Simulation, other: Simulation, tolerance: float) -> None:
    kept, others = one.kept, other.kept  # type: ignore[attr-defined]
    assert kept.keys() == others.keys()
    for name, tensor in kept.items():
        assert torch.allclose(tensor, others[name], rtol=tolerance, atol=tolerance), name
    for record, same in zip(one.metrics, other.metrics, strict=True):
        assert record.keys() == same.keys()
        numbers = [name for name in ("loss", "accuracy", "train_loss", "replied") if record.get(name) is not None]
        assert [record[n] for n in numbers] == pytest.approx(
            [same[n] for n in numbers], rel=max(1e-4, tolerance), nan_ok=True
        )


NAMES = sorted(methods.classes)


def federation_for(name: str) -> Federation:
    federation = ragged(shape=(1, 8, 8) if name == "heart" else (5,))  # whose net has to have stages
    return federation.set_aside(0.2) if methods.build(name, {}).needs_proxy else federation


def of_name(name: str) -> tuple[Method, dict[str, Any]]:
    few = {"heart": {"akt": False}, "perada": {"akt_steps": 2}}
    closing = {"ft_epochs": 2} if hasattr(methods.find(name), "ft_epochs") else {}
    method = methods.build(name, {**few.get(name, {}), **closing})
    return method, {"net": SmallLeNet()} if name == "heart" else {}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_the_numbers_of_one_client_after_the_other(name: str) -> None:
    federation = federation_for(name)
    method, options = of_name(name)
    runs = [finished(engine, method, federation, rounds=1, **options) for engine in ("stacked", "inline")]
    assert_equal(*runs, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("name", NAMES)
def test_ten_rounds(name: str, dtype: str, tolerance: float) -> None:
    federation = federation_for(name)
    method, options = of_name(name)
    runs = [finished(engine, method, federation, rounds=10, dtype=dtype, **options) for engine in ("stacked", "inline")]
    # The search for pFedFDA's β stops within a tolerance: rounding can make it stop elsewhere.
    assert_equal(*runs, 1e-2 if name == "pfedfda" else tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adam"},
        {"optimizer": "adamw", "clip_norm": 0.1},
        {"clip_norm": 0.5, "lr_schedule": "cosine"},
        {"optimizer": "adam", "optimizer_state": "kept"},
        {"class_weights": "balanced"},
        {"steps": 5, "epochs": 1},
        {"epochs": 0},
        {"join": 0.5, "validation": 0.3},
        {"metrics": ("log_loss", "f1")},
    ],
    ids=str,
)
def test_options_of_the_protocol(options: dict[str, Any]) -> None:
    for method in ("ditto", "fedrep"):
        assert_equal(finished("stacked", method, **options), finished("inline", method, **options), 1e-10)


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_other_tasks(task: str) -> None:
    options = {"class_weights": "balanced"} if task != "regression" else {}
    runs = [finished(engine, "fedavg", ragged(task), **options) for engine in ("stacked", "inline")]
    assert_equal(*runs, 1e-10)


def test_images_are_stacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(monkeypatch) as sizes:
        runs = [
            finished(engine, "fedrep", ragged(shape=(1, 8, 8)), net=SmallLeNet()) for engine in ("stacked", "inline")
        ]
    assert max(sizes) == 5
    assert_equal(*runs, 1e-10)


@pytest.mark.parametrize("net", [MLP(hidden=(7,)), SmallLeNet()], ids=["mlp", "lenet"])
def test_the_bits_of_a_client_do_not_depend_on_who_is_beside_it(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (1, 2, 4, 256):
        monkeypatch.setattr(stack, "MOST", most)
        run = finished("stacked", "fedrep", ragged(shape=(1, 8, 8)), net=net, dtype="float32")
        found.append(run.kept)  # type: ignore[attr-defined]
    two = finished("stacked", "fedrep", ragged(shape=(1, 8, 8)), net=net, dtype="float32", workers=2)
    for other in (*found[1:], two.kept):  # type: ignore[attr-defined]
        assert all(torch.equal(tensor, other[name]) for name, tensor in found[0].items())


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the stacks that are trained."""
    sizes: list[int] = []
    original = stack.train

    def counted(requests: Any, *rest: Any) -> Any:
        sizes.append(len(requests))
        return original(requests, *rest)

    monkeypatch.setattr(stack, "train", counted)
    yield sizes


def test_clients_of_like_batches_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(monkeypatch) as sizes:
        finished("stacked", "fedavg", rounds=1, dropout=0.0)
    assert sorted(sizes) == [1, 1, 7]  # batches of 1, of 3 (filled up to 4), and of 7 and 8


@pytest.mark.parametrize("name", ["pgfedsplit", "fedproto", "fedpac"])
def test_features_are_pulled_to_prototypes_side_by_side(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NearPrototypes, "__call__", lambda *_: pytest.fail("a client trained alone"))
    with counting(monkeypatch) as sizes:
        finished("stacked", name, rounds=2, dropout=0.0)
    assert max(sizes) >= 7


def test_nets_whose_steps_are_not_written_out_are_stacked_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    for method in ("ditto", "fedproto"):
        with counting(monkeypatch) as sizes:
            stacked = finished("stacked", method, net=net, dropout=0.0)
        assert max(sizes) == 7
        assert_equal(stacked, finished("inline", method, net=net, dropout=0.0), 1e-10)


def test_garbage_collection_is_as_it_was() -> None:
    gc.disable()
    try:
        finished("stacked", "fedavg", rounds=1)
        assert not gc.isenabled()
    finally:
        gc.enable()
    finished("stacked", "fedavg", rounds=1)
    assert gc.isenabled()


class Normalized(nn.Module):
    """A net that looks at the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        return self.fc(torch.relu(z - z.mean(0)))


class Branching(Normalized):
    """A net whose path depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.inner(x)
        return self.fc(torch.relu(z) if z.detach().abs().sum().item() > 0 else z)


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), layer, nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    "net",
    [Normalized(), Branching(), with_layer(nn.BatchNorm1d(6)), with_layer(nn.Dropout(0.5))],
    ids=["looks at the batch", "branches", "BatchNorm", "dropout"],
)
def test_nets_that_cannot_be_stacked_train_one_by_one_with_the_same_bits(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(monkeypatch) as sizes:
        stacked = finished("stacked", "fedavg", net=net)
    assert not sizes
    inline = finished("inline", "fedavg", net=net)
    assert all(torch.equal(t, inline.kept[name]) for name, t in stacked.kept.items())  # type: ignore[attr-defined]


def test_large_nets_are_not_stacked_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting(monkeypatch) as sizes:
        finished("stacked", "fedavg", net=MLP(hidden=(400, 400)), rounds=1)
    assert not sizes


def test_a_client_that_diverges_is_treated_as_alone_and_disturbs_no_other() -> None:
    federation = ragged()
    federation.clients[5].train.x[3] = math.inf  # its losses are not finite
    runs = [finished(engine, "fedavg", federation) for engine in ("stacked", "inline")]
    assert_equal(*runs, 1e-10)
    assert runs[0].metrics[0].get(SKIPPED, 0) == runs[1].metrics[0].get(SKIPPED, 0)


def test_a_method_that_fails_at_one_client_leaves_nothing_behind() -> None:
    class Failing(FedAvg):
        def fit(self, client: Any, payload: Any) -> Any:
            reply = super().fit(client, payload)
            if client.id == 4:
                raise RuntimeError("no more")
            return reply

    before = torch.get_rng_state()
    run = Simulation(ragged(), Failing(), net=MLP(hidden=(7,)), engine="stacked", workers=1, rounds=1)
    with pytest.raises(RuntimeError, match="no more"):
        run.step()
    assert torch.is_grad_enabled()
    assert torch.equal(before, torch.get_rng_state())


class Held:
    """Something large that a client's work holds on to."""


def test_threads_are_used_again_and_hold_nothing_of_their_last_client() -> None:
    asked = stack.Stack()
    held = [Held() for _ in range(3)]
    alive = [weakref.ref(thing) for thing in held]

    def job(thing: Held) -> tuple[greenlet, Held]:
        return getcurrent(), thing

    first = dict(asked.serve((k, partial(job, held[k])) for k in range(3)))
    second = dict(asked.serve((k, partial(job, held[k])) for k in range(3)))
    assert len({thread for thread, _ in (*first.values(), *second.values())}) == 1
    assert [second[k][1] for k in range(3)] == held
    del first, second, held
    assert [thing() for thing in alive] == [None] * 3


def test_it_serves_in_any_thread_of_the_operating_system() -> None:
    here = finished("stacked", "fedrep")
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(finished, "stacked", "fedrep").result()
    assert_equal(here, there, 0.0)


def test_random_numbers_of_a_method_are_those_of_its_client() -> None:
    class Drawing(FedAvg):
        """Draws from the global generator before and after training."""

        def fit(self, client: Any, payload: Any) -> Any:
            first = torch.rand(1)
            reply = super().fit(client, payload)
            client.log(first=first.item(), second=torch.rand(1).item())
            return reply

    runs = [finished(engine, Drawing(), rounds=2) for engine in ("stacked", "inline")]
    one, other = ({i: outcome.logged for i, outcome in run.outcomes.items()} for run in runs)
    assert one == other
    assert len({logged["second"] for logged in one.values()}) == len(one) > 5
