"""FedPer, FedRep and LG-FedAvg with more kept than their papers do: low-rank adapters of which one factor is shared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedtailor import FedTailorError, Simulation
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.fedprox import FedProx
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.lg_fedavg import LGFedAvg
from fedtailor.nets.mlp import MLP

SETTINGS = {"batch": 4, "lr": 0.1, "rounds": 3, "seed": 1, "engine": "inline"}
RANK, INPUTS, WIDTH = 2, 5, 6


class LoRA(nn.Module):
    """A frozen linear layer and a trainable update of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(RANK, inputs) / 3)
        self.lora_B = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


def adapted() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(LoRA(INPUTS, WIDTH), nn.ReLU(), LoRA(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))


def factors(model: nn.Module, which: str) -> Tensor:
    return torch.cat([t.flatten() for name, t in model.state_dict().items() if name.endswith(which)])


@pytest.mark.parametrize("method", [FedPer, FedRep])
def test_fedper_that_shares_one_factor_is_fedsa_lora(federation, method):
    run = Simulation(federation, method(keep=["head", "*.lora_B"]), adapted(), **SETTINGS).run()
    assert {(e.name, e.bytes) for e in run.ledger.last} == {("body", 4 * RANK * (INPUTS + WIDTH))}
    models = [run.personal(i) for i in range(4)]
    for other in models[1:]:
        assert torch.equal(factors(models[0], "lora_A"), factors(other, "lora_A"))
        assert not torch.equal(factors(models[0], "lora_B"), factors(other, "lora_B"))
        assert not torch.equal(models[0][4].weight, other[4].weight)
    assert torch.equal(run.server.state["body"], factors(models[0], "lora_A"))
    assert not torch.equal(run.server.state["body"], factors(adapted(), "lora_A"))


def test_fedavg_that_keeps_the_head_is_fedper_under_another_name(federation):
    fedper, fedavg = (
        Simulation(federation, m, MLP(hidden=(4,)), **SETTINGS).run() for m in (FedPer(), FedAvg(keep=["head"]))
    )
    assert torch.equal(fedper.server.state["body"], fedavg.server.state["model"])
    assert all(torch.equal(fedper.state(i)["head"], fedavg.state(i)["head"]) for i in range(4))


def test_fedrep_trains_what_is_kept_and_then_what_is_shared(federation):
    settings = {**SETTINGS, "rounds": 1}
    run = Simulation(
        federation, FedRep(head_epochs=1, keep=["head", "hidden.0.bias"]), MLP(hidden=(4,)), epochs=0, **settings
    )
    before = {i: run.state(i)["head,hidden.0.bias"].clone() for i in range(4)}
    shared = run.server.state["body"].clone()
    run.step()
    assert all(torch.equal(up["body"], shared) for up in run.traffic.up.values())
    assert not any(torch.isclose(run.state(i)["head,hidden.0.bias"], before[i]).all() for i in range(4))


def test_fedprox_pulls_only_what_is_shared(federation):
    pulled = Simulation(
        federation, FedProx(mu=10.0, keep=["head"]), MLP(hidden=(4,)), **{**SETTINGS, "lr": 0.1}, epochs=20
    )
    start = pulled.server.state["model"].clone()
    heads = [pulled.state(i)["head"].clone() for i in range(4)]
    pulled.step()
    moved = max(float((up["model"] - start).norm()) for up in pulled.traffic.up.values())
    assert moved < min(float((pulled.state(i)["head"] - heads[i]).norm()) for i in range(4))


@pytest.mark.parametrize(
    ("method", "missing"), [(FedPer(keep=["hidden.0"]), "the body"), (LGFedAvg(keep=["head"]), "the head")]
)
def test_nothing_leaves_a_client_under_the_name_of_another_part(federation, method, missing):
    with pytest.raises(FedTailorError, match=f"shares nothing but {missing}: keep has to include"):
        Simulation(federation, method, MLP(hidden=(4,)), **SETTINGS)
