"""A payload is read by many: a method that writes into it is told so, on every engine, and what clients keep is their own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedtailor import Simulation
from fedtailor.engines.readonly import ReadOnlyPayloads, kept_apart
from fedtailor.experiment.onboarding import onboard
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))

WRITES = {
    "in place": lambda tensor: tensor.add_(1.0),
    "by index": lambda tensor: tensor.__setitem__(0, 7.0),
    "to a view": lambda tensor: tensor[2:4].zero_(),
    "past PyTorch": lambda tensor: tensor.data.mul_(2.0),
    "by NumPy": lambda tensor: tensor.numpy().__setitem__(3, -1.0),
}


@dataclass(frozen=True)
class Writing(FedAvg):
    """FedAvg that writes into its payload in one of its functions."""

    function: str = "fit"
    how: str = "in place"
    client: int = 2

    @property
    def syncs_everyone(self):
        return self.function == "sync"

    @property
    def closing_steps(self):
        return int(self.function == "finish")

    def _write(self, function, client, payload):
        if function == self.function and client.id == self.client:
            WRITES[self.how](payload["model"])

    def fit(self, client, payload):
        self._write("fit", client, payload)
        return super().fit(client, payload)

    def sync(self, client, payload):
        self._write("sync", client, payload)

    def finish(self, client, payload):
        self._write("finish", client, payload)

    def personal(self, client, payload):
        self._write("personal", client, payload)
        return super().personal(client, payload)

    def onboard(self, client, payload):
        self._write("onboard", client, payload)


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_method_that_writes_into_its_payload_is_told_which_entry(federation, engine, how):
    with pytest.raises((TypeError, RuntimeError), match=r"writes into payload\['model'\] in fit\(\).*clone\(\)"):
        Simulation(federation, Writing(how=how), NET, rounds=1, engine=engine, workers=2).run()


@pytest.mark.parametrize("function", ["sync", "finish", "personal"])
@pytest.mark.parametrize("point", ["after_sync", "after_train"])
def test_it_is_told_of_every_function_that_gets_a_payload(federation, function, point):
    with pytest.raises(TypeError, match=rf"in {function}\(\)"):
        Simulation(federation, Writing(function), NET, rounds=1, engine="inline", eval_point=point).run()


def test_it_is_told_when_a_newcomer_joins(federation):
    run = Simulation(federation, Writing("onboard", client=0), NET, rounds=1, engine="inline").run()
    newcomer = type(federation).from_clients([(federation.clients[0].train.x, federation.clients[0].train.y)])
    with pytest.raises(TypeError, match=r"in onboard\(\)"):
        onboard(run, newcomer)


@dataclass(frozen=True)
class Rearranging(FedAvg):
    """Changes the mapping that it is given, not the tensors in it; and its server hands out its own state."""

    def send(self, server, client):
        return server.state

    def fit(self, client, payload):
        up = super().fit(client, payload)
        payload["model"] = payload.pop("model") + 1
        return up


def test_the_mapping_is_the_methods_own(federation):
    run, usual = (Simulation(federation, m, NET, rounds=2, engine="inline").run() for m in (Rearranging(), "fedavg"))
    assert torch.equal(run.server.state["model"], usual.server.state["model"])


@dataclass(frozen=True)
class Keeping(FedAvg):
    """Keeps what it was sent, sends what it keeps, and writes into it in the next round."""

    keeps = ("kept",)

    def fit(self, client, payload):
        if "kept" in client.state:
            client.state["kept"].add_(1.0)
        else:
            client.state["kept"] = payload["model"]
        return {"model": client.state["kept"]}

    def aggregate(self, server, replies):
        server.state["model"] = replies[0]["model"]


def test_what_a_client_keeps_or_sends_is_nobody_elses(federation):
    run = Simulation(federation, Keeping(), NET, rounds=3, engine="inline").run()
    start = run.server.net().all.vector
    assert all(torch.equal(run.state(i)["kept"], start + 1 + 1) for i in range(4))
    assert torch.equal(run.server.state["model"], start + 1 + 1)


def test_only_what_shares_memory_is_copied():
    base, own = torch.arange(6.0), torch.ones(3)
    kept = kept_apart({"view": base[2:4], "own": own, "none": torch.empty(0)}, ({"base": base},))
    assert kept["own"] is own
    assert torch.equal(kept["view"], base[2:4])
    assert kept["view"].data_ptr() != base[2:4].data_ptr()


def test_every_kind_of_tensor_can_be_lent():
    payload = {
        "bool": torch.tensor([True, False]),
        "whole": torch.arange(5),
        "half": torch.ones(3, dtype=torch.float16),
        "number": torch.tensor(0.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    with torch.inference_mode():
        payload["inference"] = torch.ones(2)
    lent = ReadOnlyPayloads()
    for round in (1, 1, 2):
        assert not any(entry.written for entry in lent.lend(("fit", round), payload).values())
    entries = lent.lend(("fit", 2), payload)
    payload["bool"].data[0] = False
    payload["turned"].data[0, 0] = 9.0
    payload["whole"].numpy()[:2] = [1, 0]  # only permuted
    assert [name for name, entry in entries.items() if entry.written] == ["bool", "whole", "turned"]


def test_what_the_server_changes_between_two_calls_is_not_held_against_a_client():
    lent, tensor = ReadOnlyPayloads(), torch.ones(4)
    lent.lend(("fit", 1), {"model": tensor})
    tensor.data.mul_(2)
    assert not lent.lend(("fit", 2), {"model": tensor})["model"].written
