from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, State, mixed
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import between, log_between, option

WIDTHS = (10, 15, 20, 50)  # of the Gaussian kernels


@methods.register("fedphp")
@dataclass(frozen=True)
class FedPHP(GlobalModel):
    """Let a running mean of the client's past models teach the global model that it receives (Li et al., 2021).

    Only the global model travels; the running mean stays with the client.
    """

    paper = "Li et al., FedPHP: Federated Personalization with Inherited Private Models"
    year = 2021
    family = "distillation"
    sample_dp = "its loss compares the features of whole batches (MMD)"
    keeps = ("inherited", "trained", "times")
    new_client = "trains the global model as in one round, without past models, sending nothing back"
    eval_point = "after_train"

    mu: float = option(
        0.9,
        "μ: momentum of the inherited model at the end of its schedule",
        at_least=0.0,
        at_most=1.0,
        search=between(0.5, 1),
    )
    lam: float = option(
        0.05,
        "λ: weight of the transfer in the loss; 0 is FedAvg",
        at_least=0.0,
        at_most=1.0,
        search=log_between(0.01, 0.1),
    )
    schedule: Literal["participation", "round"] = option(
        "participation", "what the momentum grows with: how often the client took part, or the round (as in PFLlib)"
    )

    def init(self, client: Client) -> State:
        return {"inherited": client.net("inherited").all.vector, "times": torch.tensor(0)}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        inherited = client.net("inherited", model=client.state["inherited"]).eval()

        def loss(net: Net, x: Tensor, y: Tensor) -> Tensor:
            z = net.features(x)
            with torch.no_grad():
                past = inherited.features(x)
            return (1 - self.lam) * client.loss(net.classify(z), y) + self.lam * mmd(z, past)

        client.train(net.all, loss=loss)
        client.state["times"] = client.state["times"] + 1
        momentum = self._momentum(client)
        inherited.all.vector = mixed(inherited.all.vector, net.all.vector, momentum)
        inherited.local_buffers.copy_(mixed(inherited.local_buffers, net.local_buffers, momentum))
        client.state.update(inherited=inherited.all.vector, trained=net.all.vector)
        client.log(momentum=momentum, distance=float((inherited.all.vector - net.all.vector).norm()))
        return {"model": net.all.vector}

    def _momentum(self, client: Client) -> float:
        """Return μ_t, which grows linearly to μ over the rounds, or over the expected number of rounds the client takes part in."""
        expected = client.protocol.rounds * sum(client.protocol.join_range) / 2
        times = client.state["times"].item()
        progress = client.round / client.protocol.rounds if self.schedule == "round" else times / expected
        return self.mu * min(1.0, progress)

    def onboard(self, client: Client, payload: Payload) -> None:
        client.state["inherited"] = payload["model"]
        super().onboard(client, payload)

    def personal(self, client: Client, payload: Payload) -> Net:
        """Return the model of its last training, or the global model if the client never took part."""
        return client.net(model=client.state.get("trained", payload.get("model")))


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of two sets of features, with a sum of Gaussian kernels of several widths."""
    both = torch.cat([a, b])
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    kernel = sum((torch.exp(-distances / (2 * width)) for width in WIDTHS), torch.zeros_like(distances))
    sign = torch.cat([a.new_full((len(a),), 1 / len(a)), b.new_full((len(b),), -1 / len(b))])
    return sign @ kernel @ sign
