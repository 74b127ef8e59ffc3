from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning import Client, Payload, Reply, Server, State, mixed
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import between, option


@methods.register("fedafk")
@dataclass(frozen=True)
class FedAFK(Method):
    """Share a body trained under a fixed random head; each client's own body learns from the shared features, and is mixed with the
    shared body by a learned weight μ (Yin & Mao, 2025).

    Only the shared body travels; a client's own body, head and μ stay with it.
    """

    paper = "Yin & Mao, Personalized Federated Learning with Adaptive Feature Aggregation and Knowledge Transfer"
    year = 2025
    family = "personalized aggregation"
    sample_dp = True
    home = ("personal", "mixture")
    down = ("body",)
    up = ("body",)
    keeps = ("own_body", "own_head", "mu")
    averaged = ("body",)
    eval_point = "after_train"

    afa: bool = option(True, "adaptive feature aggregation: mix the own body with the global one by a learned weight μ")
    kt: bool = option(True, "knowledge transfer: pull the own features to the global ones")
    lam: float = option(
        0.3,
        "λ: weight of knowledge transfer; 1 − λ: weight of the labels",
        at_least=0.0,
        at_most=1.0,
        search=between(0.1, 0.7),
    )
    mu0: float = option(0.5, "initial weight μ of the own body", at_least=0.0, at_most=1.0, search=between(0, 1))
    mu_lr: float | None = option(None, "learning rate of μ; none: lr, as in the paper", above=0.0)
    mu_at: Literal["mixture", "own"] = option(
        "mixture", "where the gradient of μ is taken: at the mixture, or at the own body"
    )
    kt_dir: Literal["local-global", "global-local"] = option(
        "local-global", "KL divergence of local from global features, as in the paper, or the other way round"
    )
    kt_ref: Literal["running", "received"] = option(
        "running", "global features by the shared body as it trains at the client, or as received"
    )

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector

    def init(self, client: Client) -> State:
        net = client.net("personal")
        return {
            "own_body": net.body.vector,
            "own_head": net.head.vector,
            "mu": torch.tensor(self.mu0, dtype=torch.float64),
        }

    def fit(self, client: Client, payload: Payload) -> Payload:
        # θ_G,i trains under φ_rd, the common initial head, which never changes.
        shared = client.net("global", body=payload["body"])
        own = self.personal(client, payload)  # θ_i, φ_i
        teacher = shared if self.kt_ref == "running" else client.net("received", body=payload["body"])
        mu, mu_lr = float(client.state["mu"]), client.rate(self.mu_lr)
        for epochs in self._passes(client):
            between = client.net("mixture", head=own.head.vector) if self.afa else own  # θ(μ), φ_i
            for x, y, step in client.steps(client.batches(epochs, purpose="body"), shared.body, own.body):
                step.on(x, y, shared.body)  # (4)
                target = self._features(teacher, x)
                step(self._total(client, own, x, y, target), own.body)  # (5)
                if self.afa:
                    gradient = self._mu_gradient(client, between, own, shared, mu, x, y, target)
                    if math.isfinite(gradient):
                        mu = min(max(mu - mu_lr * gradient, 0.0), 1.0)  # (6)
            if self.afa:
                own.body.vector = mixed(own.body.vector, shared.body.vector, mu)  # (3)
            client.train(own.head, epochs=epochs)  # (7)
        client.state.update(
            own_body=own.body.vector, own_head=own.head.vector, mu=torch.tensor(mu, dtype=torch.float64)
        )
        client.log(mu=mu)
        return {"body": shared.body.vector}

    @staticmethod
    def _passes(client: Client) -> list[int | None]:
        """The epochs between two mixtures of the bodies: one; where the protocol counts steps, all of a round's."""
        return [None] if client.protocol.steps else [1] * client.protocol.epochs

    def _features(self, teacher: Net, x: Tensor) -> Tensor | None:
        if not self.kt:
            return None
        with torch.no_grad():
            return F.log_softmax(teacher.features(x), dim=1)

    def _total(self, client: Client, own: Net, x: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
        """ℓ_total (8, 9): the task's loss and the KL divergence between softmaxes of own and global features."""
        if target is None:
            return client.loss(own(x), y)
        z = own.features(x)
        pair = (target, F.log_softmax(z, dim=1))
        other, reference = pair if self.kt_dir == "local-global" else pair[::-1]
        transfer = F.kl_div(other, reference, reduction="batchmean", log_target=True)  # KL(reference ‖ other)
        return (1 - self.lam) * client.loss(own.classify(z), y) + self.lam * transfer

    def _mu_gradient(
        self,
        client: Client,
        between: Net,
        own: Net,
        shared: Net,
        mu: float,
        x: Tensor,
        y: Tensor,
        target: Tensor | None,
    ) -> float:
        """∂ℓ_total/∂μ at θ(μ) = μθ_i + (1−μ)θ_G: the gradient there, times θ_i − θ_G."""
        between.train().body.mix(own.body, shared.body, mu if self.mu_at == "mixture" else 1.0)
        along = own.body.difference(shared.body)
        return between.body.directional_derivative(self._total(client, between, x, y, target), along)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net("personal", body=client.state["own_body"], head=client.state["own_head"])
