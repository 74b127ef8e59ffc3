from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from bench.bare import PlainMLP, plain_net
from bench.peer_job import Job
from bench.peer_pfllib import server_of, split, timing, write
from fedtailor.data.sources.pfllib import read_client


def job() -> Job:
    clients = [
        (torch.randn(n, 4), torch.randint(0, 3, (n,)), torch.randn(2, 4), torch.randint(0, 3, (2,))) for n in (7, 5)
    ]
    start = torch.cat([p.detach().reshape(-1) for p in plain_net((4,), 3).parameters()])
    return Job(clients, start, 3, rounds=2, batch=5, lr=0.01, epochs=1)


class Cut(nn.Module):
    def __init__(self, base: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.base, self.head = base, head


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout of PFLlib with no more than what the driver names."""

    def server(options: SimpleNamespace, times: int) -> SimpleNamespace:
        return options

    for name, content in (
        ("serveravg", {"FedAvg": server}),
        ("serverrep", {"FedRep": server}),
        ("models", {"BaseHeadSplit": Cut}),
    ):
        package = "trainmodel" if name == "models" else "servers"
        module = ModuleType(name)
        module.__dict__.update(content)
        for parent in ("flcore", f"flcore.{package}"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, f"flcore.{package}.{name}", module)


def test_samples_are_written_as_pfllib_reads_them(tmp_path: Path) -> None:
    asked = job()
    write(asked, tmp_path)
    for number, client in enumerate(asked.clients):
        for part, x, y in (("train", *client[:2]), ("test", *client[2:])):
            found = read_client(tmp_path / part / f"{number}.npz")
            assert (found[0] == x.numpy()).all()
            assert (found[1] == y.numpy()).all()


def test_the_options_are_those_of_the_job() -> None:
    asked = job()
    options = server_of(asked, "FedAvg")
    assert (options.num_clients, options.batch_size, options.local_learning_rate) == (2, 5, 0.01)
    assert options.model is asked.net
    assert isinstance(server_of(asked, "FedRep").model, Cut)


def test_a_net_is_cut_before_its_last_layer() -> None:
    net = PlainMLP(4, 3)
    x = torch.randn(2, 4)
    whole = net(x)
    cut = split(net)
    assert cut.head.out_features == 3
    assert torch.equal(cut.head(cut.base(x)), whole)


def test_the_round_that_only_evaluates_the_last_is_not_timed() -> None:
    server = SimpleNamespace(Budget=[3.0, 2.0, 9.0], rs_test_acc=[0.1, 0.2, 0.3])
    found = timing(job(), server)
    assert found.seconds == [3.0, 2.0]
    assert found.accuracy == pytest.approx(30)
