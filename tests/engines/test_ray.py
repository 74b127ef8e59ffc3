"""Ray actors give the numbers of one process, and a lost one never ends a run."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

import ray

from fedtailor import Config, Federation, Simulation
from fedtailor.data.client_data import Split
from fedtailor.engines import Work, WorkerLost, start_engine
from fedtailor.errors import FedTailorError
from fedtailor.experiment.run import start
from fedtailor.experiment.run_folder import read_lines
from fedtailor.methods import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.cnn import CNN

MEGABYTE = 1024**2


@pytest.fixture(scope="module")
def small_ray():
    """One Ray for all tests here, which engines find running and leave running."""
    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=100 * MEGABYTE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def ray_for_slow_tests(request):
    """A cluster takes seconds to start: only tests that are marked as slow get one."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("small_ray")


def federation(clients: int = 5, samples: int = 12) -> Federation:
    """Small grey images of three classes; the server has some too."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 3
        return (rng.integers(0, 60, (n, 1, 4, 4)) + 60 * y[:, None, None, None]).astype(np.uint8), y

    made = Federation.from_clients([(*draw(samples + i), *draw(6)) for i in range(clients)])
    return dataclasses.replace(made, server=Split(*map(torch.from_numpy, draw(12))))


def simulate(method="fedrep", engine="ray", workers=2, net=None, **settings) -> Simulation:
    settings = {"rounds": 2, "batch": 4, "lr": 0.05, "seed": 1, **settings}
    net = net or CNN(conv1=2, conv2=2, hidden=4)
    return Simulation(federation(), method, net, engine=engine, workers=workers, **settings)


class Wrapped(nn.Module):
    """A net of the user's own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x):
        return self.inner(x)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "workers"), [("fedamp", 1), ("fedrep", 3), ("heart", 2)])
def test_any_number_of_actors_gives_the_same_bits_as_one_process(name, workers, assert_same_bits):
    options = {"akt_steps": 3, "akt_batch": 8, "pgd_steps": 2} if name == "heart" else {}
    method = methods.build(name, options)
    one, many = (simulate(method, engine, workers, join=0.6).run() for engine in ("inline", "ray"))
    assert len(many.engine.actors) == workers
    assert_same_bits(one, many)


@pytest.mark.slow
def test_what_clients_log_in_a_closing_step_is_that_of_one_process():
    one, many = (simulate("tailor", engine, rounds=1).run() for engine in ("inline", "ray"))
    logged = {i: outcome.logged for i, outcome in one.outcomes.items()}
    assert [list(values) for values in logged.values()] == [["prior_weight"]] * 5
    assert logged == {i: outcome.logged for i, outcome in many.outcomes.items()}


MINE = """
from dataclasses import dataclass
from fedtailor.methods import methods
from fedtailor.methods.fedavg import FedAvg

@methods.register("mine")
@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""


@pytest.mark.slow
def test_a_method_of_a_users_own_file_is_sent_along_and_so_is_a_net(tmp_path, assert_same_bits):
    (tmp_path / "mine.py").write_text(MINE)
    mine = methods.build(str(tmp_path / "mine.py"), {})
    net = Wrapped()  # whose weights every simulation starts from
    assert_same_bits(simulate("fedavg", "inline", net=net).run(), simulate(mine, net=net).run())


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg whose client 3 does something odd in every round."""

    name = "odd"

    def fit(self, client, payload):
        if client.id == 3:
            match client.round:
                case 1:
                    client.warn("something to hear of")
                case 2:
                    raise FedTailorError("the data of client 3 is not fit for this")
                case 3:
                    raise ZeroDivisionError("a bug in a method")
                case 4:
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(client, payload)


@pytest.mark.slow
def test_what_an_actor_logs_stumbles_over_or_dies_of_is_told_here(caplog):
    run = simulate(Odd(), rounds=4)
    with caplog.at_level(logging.WARNING):
        run.step()
    assert "fit 1 3: something to hear of" in caplog.text
    with pytest.raises(FedTailorError, match=r"^the data of client 3 is not fit for this$"):
        run.step()
    with pytest.raises(RuntimeError, match=r"(?s)A worker failed:.*in fit.*ZeroDivisionError: a bug in a method"):
        run.step()
    with pytest.raises(WorkerLost, match=r"Actor \d \(process \d+ on [\d.]+\) was lost in round 4 \(fit\): "):
        run.step()


@pytest.mark.slow
def test_what_cannot_be_sent_is_told():
    net = Wrapped()
    simulation = simulate(engine="inline", net=net)
    net.line = socket.socket()
    with net.line, pytest.raises(FedTailorError, match=r"cannot be sent.*socket.*engine=inline"):
        start_engine("ray", simulation.worker, 2)


@pytest.mark.slow
def test_a_run_that_loses_an_actor_goes_on_with_a_new_one_to_the_same_bits(tmp_path, caplog, monkeypatch):
    engines = []
    monkeypatch.setattr(
        "fedtailor.experiment.setup.start_engine", lambda *a: engines.append(start_engine(*a)) or engines[-1]
    )

    def config(engine: str) -> Config:
        words = ["rounds=5", "clients=5", "partition=iid", "net=mlp", "net.hidden=[8]", "checkpoint_every=2"]
        return Config.load(words=[*words, f"engine={engine}", "workers=2", "save_models=false"])

    def watch(record):
        if record["round"] == 3 and len(engines) == 1:
            ray.kill(engines[0].actors[1])

    start(config("ray"), tmp_path / "lost", [watch])
    assert "Carrying on from the last checkpoint" in caplog.text
    assert len(engines) == 2
    start(config("inline"), tmp_path / "whole")
    for file in ("clients.jsonl", "ledger.csv"):
        assert (tmp_path / "lost" / file).read_text() == (tmp_path / "whole" / file).read_text()
    lost, whole = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("lost", "whole"))
    assert [r["loss"] for r in lost] == [r["loss"] for r in whole]


@pytest.mark.slow
def test_a_tensor_is_put_into_the_store_once_however_many_clients_it_goes_to(monkeypatch):
    run = simulate("fedavg", workers=0)
    assert len(run.engine.actors) == 2  # one for each core
    stored = []
    monkeypatch.setattr(ray, "put", lambda value, put=ray.put: stored.append(value) or put(value))
    common, private = torch.arange(1000.0), [torch.full((2,), float(i)) for i in range(5)]
    run.engine.call(Work.SET_STATE, 0, range(5), lambda i: {"model": common, "own": private[i]})
    assert sum(data.nbytes == 4000 for part in stored for _, _, data in part.values()) == 1
    assert len(stored) == 3  # what goes to both actors, and what goes to each alone
    run.engine.known.update(range(5))
    assert all(
        torch.equal(run.state(i)["own"], private[i]) and torch.equal(run.state(i)["model"], common) for i in range(5)
    )


def test_an_actor_gets_the_samples_of_its_own_clients_only():
    made = federation()
    pool, sizes = torch.cat([c.train.x for c in made.clients]), [len(c.train) for c in made.clients]
    rows = torch.arange(len(pool)).split(sizes)
    clients = [dataclasses.replace(c, train=Split(pool, c.train.y, r)) for c, r in zip(made.clients, rows, strict=True)]
    pooled = dataclasses.replace(made, clients=clients)
    share = Simulation(pooled, "fedavg", Wrapped(), engine="inline").worker.share([1, 3])
    assert {i: len(c.train) for i, c in share.clients.items()} == {1: 13, 3: 15}
    assert len(share.federation.server) == 0
    for i, client in share.clients.items():
        assert torch.equal(client.train.x, made.clients[i].train.x)
        assert client.train.x.untyped_storage().nbytes() == made.clients[i].train.x.nbytes


@pytest.mark.slow
def test_an_interrupt_is_not_for_actors_and_closing_ends_them_but_not_the_ray_that_was_there_before():
    run = simulate()
    pids = [int(home.split("process ")[1].split()[0]) for home in run.engine.homes]
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    assert len(run.run().metrics) == 2
    run.close()
    assert ray.is_initialized()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedtailor.engines.ray", raising=False)
    with pytest.raises(FedTailorError, match=r"engine=ray needs Ray:  pip install 'fedtailor\[ray\]'"):
        simulate()


def test_addresses_that_cannot_be(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:  # bound, so that nobody else answers there, but not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        begin = time.monotonic()
        with pytest.raises(FedTailorError, match=rf"No Ray cluster answers at 127.0.0.1:{port}.*ray start --head"):
            simulate(ray_address=f"127.0.0.1:{port}")
        assert time.monotonic() - begin < 10
    with pytest.raises(FedTailorError, match=r"ray_address = 'ray://head:10001' is not allowed: expected host:port"):
        simulate(ray_address="ray://head:10001")
    with pytest.raises(FedTailorError, match=r"ray_address=somewhere:1 is for engine=ray"):
        simulate(engine="inline", ray_address="somewhere:1")
