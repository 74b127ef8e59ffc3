from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.learning import (
    Client,
    Loss,
    Payload,
    Reply,
    Server,
    class_means,
    mean_of_means,
    near_prototypes,
)
from fedtailor.learning.simplex import argmin_on_simplex
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option

NEGLIGIBLE = 1e-3  # smaller weights of heads are set to 0


@methods.register("fedpac")
@dataclass(frozen=True)
class FedPAC(Method):
    """Share the body, pull features to common prototypes, and give each client the mixture of heads that suits its data (Xu et al., 2023).

    Clients send their body, head and class means, and the feature statistics from which the server computes the mixtures.
    """

    paper = "Xu et al., Personalized Federated Learning with Feature Alignment and Classifier Collaboration"
    year = 2023
    family = "prototypes"
    sample_dp = "its clients send class means, counts and variances of their features"
    down = ("body", "head", "prototypes", "known")
    up = ("body", "head", "means", "counts", "h", "variance")
    averaged = ("body",)
    tasks = ("multiclass",)

    lam: float = option(
        1.0, "λ: strength of the pull of features to their class's prototype", at_least=0.0, search=log_between(0.1, 10)
    )
    head_epochs: int = option(1, "epochs on the head before the body trains", at_least=0)
    head_lr: float = option(
        0.1, "learning rate of the head; that of the body is lr", above=0.0, search=log_between(0.01, 0.5)
    )

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector

    def send(self, server: Server, client: int) -> Payload:
        own = {"head": f"head.{client}"}  # the mixture of the last round it took part in
        names = {name: own.get(name, name) for name in self.down}
        return {name: server.state[key] for name, key in names.items() if key in server.state}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        z, y = client.embed(net)
        means, counts = class_means(z, y, client.classes)
        h = means * (counts / len(y)).unsqueeze(1)  # h_c = q_c·μ_c
        variance = (z.square().sum(1).mean() - h.square().sum()) / len(y)  # V
        client.train(net.head, epochs=self.head_epochs, lr=self.head_lr, on=(z, y) if net.repeatable else None)
        client.train(net.body, loss=self._loss(client, payload, means))
        client.state["head"] = net.head.vector  # used until the server has mixed one for this client
        means, counts = class_means(*client.embed(net), client.classes)
        sent = {"means": means, "counts": counts, "h": h, "variance": variance}
        return {"body": net.body.vector, "head": net.head.vector, **sent}

    def _loss(self, client: Client, payload: Payload, own: Tensor) -> Loss | None:
        """CE + λ·MSE(z, P_y); the client's own class means take the place of unknown prototypes."""
        if "prototypes" not in payload:
            return None
        known = payload["known"]
        targets = torch.where(known.unsqueeze(1), payload["prototypes"], own)
        return near_prototypes(client.loss, {"prototypes": targets, "known": torch.ones_like(known)}, self.lam)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")
        means, counts = zip(*((r["means"], r["counts"]) for r in replies), strict=True)
        server.state["prototypes"], server.state["known"] = mean_of_means(means, counts, weighted=True)
        heads = torch.stack([r["head"] for r in replies])
        weights = head_weights(torch.stack([r["h"] for r in replies]), torch.stack([r["variance"] for r in replies]))
        for reply, row in zip(replies, weights.to(heads) @ heads, strict=True):
            server.state[f"head.{reply.client}"] = row.clone()
        server.log(own_head_weight=weights.diagonal().mean().item())

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(body=payload["body"], head=payload.get("head", client.state.get("head")))


def head_weights(h: Tensor, variance: Tensor) -> Tensor:
    """Return, for each client i, the weights a on the simplex that minimize aᵀ(diag(V) + D⁽ⁱ⁾)a, D⁽ⁱ⁾_jk = ⟨h_i − h_j, h_i − h_k⟩.

    As the weights sum to 1, aᵀD⁽ⁱ⁾a = ‖h_i − Σ a_j h_j‖². With the Gram matrix G of the h, the quadratic part diag(V) + G, which is
    positive semi-definite, is the same for all clients; only the linear part G_i differs.
    """
    h = h.flatten(1).double()
    h = h - h.mean(0)  # only differences matter, and smaller numbers lose fewer digits
    gram = h @ h.T
    quadratic = gram + variance.double().clamp(min=0).diag()  # with one sample it is 0, up to rounding
    if not torch.isfinite(quadratic).all():
        return torch.eye(len(h), dtype=h.dtype)
    weights = argmin_on_simplex(quadratic, gram)
    kept = torch.where(weights >= NEGLIGIBLE, weights, 0.0)
    kept = torch.where(kept.any(1, keepdim=True), kept, weights)  # of thousands of clients, all may be negligible
    return kept / kept.sum(1, keepdim=True)
