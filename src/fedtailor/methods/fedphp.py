from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, State, mixed
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option

WIDTHS = (10, 15, 20, 50)


@methods.register("fedphp")
@dataclass(frozen=True)
class FedPHP(GlobalModel):
    """A client's past models, inherited as a running mean, teach the global model it receives (Li et al., 2021)."""

    paper = "Li et al., FedPHP: Federated Personalization with Inherited Private Models"
    year = 2021
    family = "distillation"
    keeps = ("inherited", "trained", "times")
    new_client = "trains the global model as in one round, without a past of its own, sending nothing back"
    eval_point = "after_train"

    mu: float = option(0.9, "μ: momentum of the inherited model at the end of its schedule", at_least=0.0, at_most=1.0)
    lam: float = option(0.05, "λ: share of the transfer in the loss; 0 is FedAvg", at_least=0.0, at_most=1.0)
    schedule: Literal["participation", "round"] = option(
        "participation", "what the momentum grows with: how often the client took part, or the round (as PFLlib)"
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
        """μ_t, growing linearly to μ over the rounds, or over those the client may expect to take part in."""
        expected = client.protocol.rounds * sum(client.protocol.join_range) / 2
        times = client.state["times"].item()
        progress = client.round / client.protocol.rounds if self.schedule == "round" else times / expected
        return self.mu * min(1.0, progress)

    def onboard(self, client: Client, payload: Payload) -> None:
        client.state["inherited"] = payload["model"]
        super().onboard(client, payload)

    def personal(self, client: Client, payload: Payload) -> Net:
        """The model it trained last; a client that never took part has the global one."""
        return client.net(model=client.state.get("trained", payload.get("model")))


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples of features, under a sum of Gaussian kernels of several widths."""
    both = torch.cat([a, b])
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    kernel = sum((torch.exp(-distances / (2 * width)) for width in WIDTHS), torch.zeros_like(distances))
    sign = torch.cat([a.new_full((len(a),), 1 / len(a)), b.new_full((len(b),), -1 / len(b))])
    return sign @ kernel @ sign
