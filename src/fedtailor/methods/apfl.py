from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.learning import Client, Descent, Payload, State, mixed
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import between, option


@methods.register("apfl")
@dataclass(frozen=True)
class APFL(GlobalModel):
    """Predict with a mixture of an own model and the global one, with a learned weight α (Deng et al., 2020).

    Only the global model travels; the own model and α stay with the client.
    """

    paper = "Deng et al., Adaptive Personalized Federated Learning"
    year = 2020
    family = "personalized aggregation"
    sample_dp = "its loop learns a mixture of two models from whole batches"
    keeps = ("own", "alpha")
    new_client = "starts from the global model and trains its own as in one round, sending nothing back"

    alpha: float = option(
        0.5, "α: initial weight of the own model", at_least=0.0, at_most=1.0, search=between(0.1, 0.9)
    )
    adaptive: bool = option(True, "learn α; false keeps its initial value")
    pfllib_style: bool = option(
        False, "as in PFLlib: the own model trains on its own loss and is replaced by the mixture after each round"
    )

    def init(self, client: Client) -> State:
        return {"own": client.net("own").all.vector, "alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])  # w
        own = client.net("own", model=client.state["own"])  # v
        alpha, lr = float(client.state["alpha"]), client.rate()
        descend = self._pfllib_step if self.pfllib_style else self._step
        for x, y, step in client.steps(client.batches(purpose="all"), net.all, own.all):
            alpha_gradient = descend(client, step, net, own, alpha, x, y)
            if self.adaptive and math.isfinite(alpha_gradient):
                alpha = min(max(alpha - lr * alpha_gradient, 0.0), 1.0)
        if self.pfllib_style:
            own.all.mix(own.all, net.all, alpha)
        client.state.update(own=own.all.vector, alpha=torch.tensor(alpha, dtype=torch.float64))
        client.log(alpha=alpha)
        return {"model": net.all.vector}

    def _step(self, client: Client, step: Descent, net: Net, own: Net, alpha: float, x: Tensor, y: Tensor) -> float:
        """w ← w − η∇f(w) and v ← v − ηα∇f(v̄), where v̄ = αv + (1−α)w; return ∂f(v̄)/∂α = ⟨v − w, ∇f(v̄)⟩."""
        v = own.all.weights.detach()
        own.all.mix(own.all, net.all, alpha)
        loss, mixture_loss = client.loss(net(x), y), client.loss(own(x), y)
        gradient = own.all.gradient(mixture_loss)
        own.all.weights = v
        alpha_gradient = own.all.difference(net.all).dot(gradient).item()
        step(mixture_loss, own.all, gradient=alpha * gradient)
        step(loss, net.all)
        return alpha_gradient

    def _pfllib_step(
        self, client: Client, step: Descent, net: Net, own: Net, alpha: float, x: Tensor, y: Tensor
    ) -> float:
        """Let w and v each descend their own loss; return α's gradient, a mixture of theirs plus a pull of α to zero."""
        loss, own_loss = client.loss(net(x), y), client.loss(own(x), y)
        at_w, at_v = net.all.gradient(loss), own.all.gradient(own_loss)
        step(own_loss, own.all, gradient=at_v)
        step(loss, net.all, gradient=at_w)
        return own.all.difference(net.all).dot(mixed(at_v, at_w, alpha)).item() + 0.02 * alpha

    def onboard(self, client: Client, payload: Payload) -> None:
        client.state["own"] = payload["model"]
        super().onboard(client, payload)

    def personal(self, client: Client, payload: Payload) -> Net:
        own = client.net("own", model=client.state["own"])
        if not self.pfllib_style:
            own.all.mix(own.all, client.net(model=payload["model"]).all, float(client.state["alpha"]))
        return own
