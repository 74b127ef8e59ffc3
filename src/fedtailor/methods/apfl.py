from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, State, mixed
from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.nets.net import Net
from fedtailor.registry import option


@methods.register("apfl")
@dataclass(frozen=True)
class APFL(FedAvg):
    """Predict with a mixture of an own and the global model, and learn the share of each (Deng et al., 2020)."""

    paper = "Deng et al., Adaptive Personalized Federated Learning"
    year = 2020
    family = "personalized aggregation"
    keeps = ("own", "alpha")
    new_client = "starts from the global model and trains its own as in one round, sending nothing back"

    alpha: float = option(0.5, "α: share of the own model at the start", at_least=0.0, at_most=1.0)
    adaptive: bool = option(True, "learn α; false leaves it at its start")
    pfllib_style: bool = option(
        False, "as PFLlib: the own model trains on its own loss and becomes the mixture at the end of each round"
    )

    def init(self, client: Client) -> State:
        return {"own": client.net("own").all.vector, "alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])  # w
        own = client.net("own", model=client.state["own"])  # v
        alpha, lr = float(client.state["alpha"]), client.protocol.lr
        step = self._pfllib_step if self.pfllib_style else self._step
        for x, y in client.guarded(client.batches(purpose="all"), net.all, own.all):
            alpha_gradient = step(client, net, own, alpha, x, y)
            if self.adaptive and math.isfinite(alpha_gradient):
                alpha = min(max(alpha - lr * alpha_gradient, 0.0), 1.0)
        if self.pfllib_style:
            own.all.weights.copy_(mixed(own.all.weights, net.all.weights, alpha))
        client.state.update(own=own.all.vector, alpha=torch.tensor(alpha, dtype=torch.float64))
        client.log(alpha=alpha)
        return {"model": net.all.vector}

    def _step(self, client: Client, net: Net, own: Net, alpha: float, x: Tensor, y: Tensor) -> float:
        """w ← w − η∇f(w) and v ← v − ηα∇f(v̄), where v̄ = αv + (1−α)w; returns ∂f(v̄)/∂α = ⟨v − w, ∇f(v̄)⟩."""
        w, v, lr = net.all.weights, own.all.weights.clone(), client.protocol.lr
        own.all.weights.copy_(mixed(v, w, alpha))
        loss, mixture_loss = client.loss(net(x), y), client.loss(own(x), y)
        gradient = own.all.gradient(mixture_loss)
        own.all.weights.copy_(v)
        if not (client.sound(mixture_loss) and client.sound(loss)):
            return 0.0
        alpha_gradient = (v - w).dot(gradient).item()
        net.all.step(loss, lr)
        own.all.weights.sub_(gradient, alpha=lr * alpha)
        return alpha_gradient

    def _pfllib_step(self, client: Client, net: Net, own: Net, alpha: float, x: Tensor, y: Tensor) -> float:
        """w and v each descend their own loss; α's gradient mixes their gradients and pulls α to zero."""
        w, v, lr = net.all.weights, own.all.weights, client.protocol.lr
        loss, own_loss = client.loss(net(x), y), client.loss(own(x), y)
        if not (client.sound(own_loss) and client.sound(loss)):
            return 0.0
        at_w, at_v = net.all.gradient(loss), own.all.gradient(own_loss)
        w.sub_(at_w, alpha=lr)
        v.sub_(at_v, alpha=lr)
        return (v - w).dot(mixed(at_v, at_w, alpha)).item() + 0.02 * alpha

    def onboard(self, client: Client, payload: Payload) -> None:
        client.state["own"] = payload["model"]
        super().onboard(client, payload)

    def personal(self, client: Client, payload: Payload) -> Net:
        own = client.net("own", model=client.state["own"])
        if not self.pfllib_style:
            w = payload["model"][-len(own.all.weights) :]
            own.all.weights.copy_(mixed(own.all.weights, w, float(client.state["alpha"])))
        return own
