"""Compiled steps are the steps, to a few rounding errors, and a run without a compiler goes on without them."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from fedtailor import Federation, Simulation
from fedtailor.learning import compiled
from fedtailor.learning.compiled import CompiledSteps, compiles
from fedtailor.learning.protocol import Protocol
from fedtailor.nets import Task
from fedtailor.nets.build import build_net
from fedtailor.nets.mlp import MLP

needs_compiler = pytest.mark.skipif(not compiled.has_compiler(), reason="there is no C++ compiler on this machine")


def federation() -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_clients(
        [
            (
                rng.normal(size=(n, 4)).astype(np.float32),
                rng.integers(0, 3, n),
                rng.normal(size=(5, 4)),
                [0, 1, 2, 0, 1],
            )
            for n in (8, 11, 3)
        ]
    )


def run(compile: str) -> Simulation:
    return Simulation(
        federation(), "fedrep", MLP(hidden=(6,)), engine="inline", compile=compile, rounds=2, batch=4, lr=0.1
    ).run()


@needs_compiler
def test_a_compiled_run_is_the_eager_run_to_1e_5():
    eager, fast = run("off"), run("on")
    assert eager.worker.modules.steps is None
    kinds = {(features, shape[0]) for _, features, shape, _ in fast.worker.modules.steps._steps}
    assert kinds == {(True, 4), (False, 4)}  # the head on features, the body; only whole batches
    assert all(step is not None for step in fast.worker.modules.steps._steps.values())
    assert fast.metrics[-1]["train_loss"] == pytest.approx(eager.metrics[-1]["train_loss"], rel=1e-5)
    for name, tensor in eager.server.state.items():
        assert torch.allclose(fast.server.state[name], tensor, rtol=1e-5, atol=1e-6)
    for client in range(3):
        for name, tensor in eager.state(client).items():
            assert torch.allclose(fast.state(client)[name], tensor, rtol=1e-5, atol=1e-6)
    x = torch.full((4, 4), float("nan"))  # a step whose loss is not finite is left out
    net = fast.worker.modules.lend("model")[0]
    before = net.all.vector
    loss = fast.worker.modules.steps.take(net.body, x, torch.zeros(4, dtype=torch.long), 0.1, features=False)
    assert not torch.isfinite(loss)
    assert torch.equal(net.all.vector, before)


def net(name: str = "mlp"):
    return build_net(name, Task((60,), 6) if name == "mlp" else Task((1, 28, 28), 6))


def test_auto_compiles_long_runs_of_dense_nets_only(monkeypatch):
    monkeypatch.setattr(compiled, "has_compiler", lambda: True)
    auto = Protocol()
    assert compiles(auto, net(), 300_000)
    assert not compiles(auto, net(), 3_000)
    assert not compiles(auto, net("cnn"), 300_000)
    assert compiles(Protocol(compile="on"), net("cnn"), 10)
    assert not compiles(Protocol(compile="on"), net("resnet18"), 10)  # BatchNorm keeps statistics outside the step
    assert not compiles(Protocol(compile="off"), net(), 300_000)


def test_without_a_compiler_the_run_says_so_and_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert not compiles(Protocol(), net(), 300_000)
        assert caplog.text == ""
        assert not compiles(Protocol(compile="on"), net(), 10)
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_mentioned_once_and_the_steps_are_taken_as_they_are(monkeypatch, caplog):
    def broken(step, **options):
        def fail(*arguments):
            raise RuntimeError("internal compiler error")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    steps, part = CompiledSteps(), net().all
    x, y = torch.zeros(2, 60), torch.zeros(2, dtype=torch.long)
    with caplog.at_level(logging.WARNING):
        assert steps.take(part, x, y, 0.1, features=False) is None
        assert steps.take(part, x, y, 0.1, features=False) is None
    assert caplog.text.count("cannot be compiled (RuntimeError)") == 1
