"""Several processes give the numbers of one, and a worker that dies or fails never leaves the run hanging."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedtailor import Federation, Simulation
from fedtailor.engines import Inline, Processes, WorkerLost, start_engine
from fedtailor.engines.remote import balanced
from fedtailor.errors import FedTailorError
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.mlp import MLP


def federation(clients: int = 5, samples: int = 12) -> Federation:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 3, n)
        return (rng.normal(size=(n, 4)) + y[:, None]).astype(np.float32), y

    return Federation.from_clients([(*draw(samples + i), *draw(6)) for i in range(clients)])


def simulate(method="fedrep", engine="processes", workers=2, **settings) -> Simulation:
    settings = {"rounds": 3, "batch": 4, "lr": 0.05, "seed": 1, **settings}
    return Simulation(federation(), method, MLP(hidden=(6,)), engine=engine, workers=workers, **settings)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_any_number_of_workers_gives_the_same_bits(workers, assert_same_bits):
    one = simulate(engine="inline", join=0.6).run()
    many = simulate(workers=workers, join=0.6).run()
    assert_same_bits(one, many)
    assert len(many.engine.processes) == min(workers, 5)


def test_what_clients_log_in_a_closing_step_is_that_of_inline():
    one, many = (simulate("tailor", engine, rounds=1).run() for engine in ("inline", "processes"))
    logged = {i: outcome.logged for i, outcome in one.outcomes.items()}
    assert [list(values) for values in logged.values()] == [["prior_weight"]] * 5
    assert logged == {i: outcome.logged for i, outcome in many.outcomes.items()}


AUTOGRAD_IN_THREADS = """
import torch
from fedtailor.engines.processes import survives_fork
from tests.engines.test_processes import simulate

class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                Again.apply(torch.zeros(1, requires_grad=True), ctx.depth - 1).sum().backward()
        return gradient, None

assert survives_fork()
Again.apply(torch.zeros(1, requires_grad=True), 80).sum().backward()  # too deep for one thread, so autograd starts others
assert not survives_fork()
many, one = simulate(engine="processes").run(), simulate(engine="inline").run()
assert type(many.engine).__name__ == "Inline"
assert many.metrics[-1]["accuracy"] == one.metrics[-1]["accuracy"]
"""


def test_where_autograd_has_threads_clients_are_served_in_this_process():
    """As on a machine with a GPU, once something has been trained: a forked process could not train."""
    command, root = [sys.executable, "-c", AUTOGRAD_IN_THREADS], Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "clients are served here" in ended.stderr


@pytest.mark.slow
def test_more_than_one_thread_a_worker_starts_new_processes(numbers):
    one, many = simulate(engine="inline", threads=2, rounds=1).run(), simulate(threads=2, rounds=1).run()
    assert not many.engine.forks
    assert numbers(one) == numbers(many)


def test_states_go_back_to_a_checkpoint(numbers):
    run = simulate("fedper", rounds=4, join=0.4)
    run.step()
    kept = {i: {k: t.clone() for k, t in s.items()} for i, s in run.engine.states().items()}
    server = {k: t.clone() for k, t in run.server.state.items()}
    assert 0 < len(kept) < 5
    run.run()
    first = numbers(run)
    run.restore(1, server, kept, run.metrics)
    assert set(run.engine.states()) == set(kept)
    assert numbers(run.run()) == first


def test_clients_are_dealt_out_by_samples():
    owners = balanced([100, 1, 1, 50, 49, 0], 2)
    loads = [sum(n for n, o in zip([100, 1, 1, 50, 49, 0], owners, strict=True) if o == w) for w in (0, 1)]
    assert sorted(loads) == [100, 101]


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg whose client 3 does something odd in round 2."""

    name = "odd"
    deed: str = "die"

    def fit(self, client, payload):
        if client.id == 3 and client.round == 2:
            if self.deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "user":
                raise FedTailorError("the data of client 3 is not fit for this")
            if self.deed == "bug":
                raise ZeroDivisionError("a bug in a method")
            if self.deed == "sleep":
                time.sleep(60)
            client.warn("something to hear of")
        return super().fit(client, payload)


def test_a_worker_that_is_killed_is_noticed_at_once_and_named():
    run = simulate(Odd())
    run.step()
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match=r"killed by SIGKILL in round 2 \(fit\).*memory"):
        run.step()
    assert time.monotonic() - begin < 5
    assert not any(p.is_alive() for p in run.engine.processes)


def test_a_worker_killed_from_outside_while_it_works_is_noticed():
    run = simulate(Odd(deed="sleep"))
    run.step()
    victim = run.engine.processes[run.engine.owners[3]]
    threading.Timer(0.3, lambda: os.kill(victim.pid, signal.SIGKILL)).start()
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="SIGKILL"):
        run.step()
    assert time.monotonic() - begin < 10


def test_a_worker_killed_between_rounds_is_noticed():
    run = simulate()
    run.step()
    victim = run.engine.processes[0]
    victim.kill()
    victim.join()
    with pytest.raises(WorkerLost, match="Worker 0"):
        run.step()


def test_a_mistake_of_the_user_arrives_as_one_and_a_bug_with_its_traceback():
    with pytest.raises(FedTailorError, match=r"^the data of client 3 is not fit for this$"):
        simulate(Odd(deed="user")).run()
    with pytest.raises(RuntimeError, match=r"(?s)A worker failed:.*in fit.*ZeroDivisionError: a bug in a method"):
        simulate(Odd(deed="bug")).run()


def test_what_a_worker_logs_is_heard_here(caplog):
    with caplog.at_level(logging.WARNING):
        simulate(Odd(deed="warn")).run()
    assert "fit 2 3: something to hear of" in caplog.text


def test_workers_end_with_their_simulation():
    run = simulate()
    processes = run.engine.processes
    del run
    assert not any(p.is_alive() for p in processes)


@pytest.mark.slow
def test_workers_end_with_their_parent():
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import test_processes as t\n"
        "r = t.simulate(); r.step(); print(*(p.pid for p in r.engine.processes), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True)
    orphans = [int(pid) for pid in out.stdout.split()]
    assert len(orphans) == 2
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in orphans)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_auto_takes_processes_where_they_help():
    small = simulate(engine="auto")
    assert isinstance(small.engine, Inline)
    large = Simulation(federation(4, 3000), "fedavg", MLP(hidden=(64,)), engine="auto", workers=2, rounds=20)
    assert isinstance(large.engine, Processes)
    one = Simulation(federation(4, 3000), "fedavg", MLP(hidden=(64,)), engine="auto", workers=1, rounds=20)
    assert isinstance(one.engine, Inline)


def test_unknown_engines_and_nets_that_cannot_be_handed_over():
    with pytest.raises(FedTailorError, match=r"Unknown engine 'proceses'. Did you mean 'processes'"):
        start_engine("proceses", simulate(engine="inline").worker)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

        def forward(self, x):
            return self.inner(x)

    with pytest.raises(FedTailorError, match=r"cannot be handed to them.*Use threads=1 or engine=inline"):
        Simulation(federation(), "fedavg", Wrapped(), engine="processes", workers=2, threads=2)
    run = Simulation(federation(), "fedavg", Wrapped(), engine="processes", workers=2, rounds=1).run()
    assert run.metrics[-1]["replied"] == 5


def test_nothing_is_left_running():
    names = {p.name for p in multiprocessing.active_children()}
    simulate().run().close()
    assert {p.name for p in multiprocessing.active_children()} <= names
