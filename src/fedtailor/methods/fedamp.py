from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.learning.cores import on_all_cores
from fedtailor.learning.mixing import column_blocks
from fedtailor.learning.similarity import squared_distances
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("fedamp")
@dataclass(frozen=True)
class FedAMP(Method):
    """Pull each client to its own cloud model, an average of all models in which similar ones weigh more (Huang et al., 2021).

    Clients send their whole model and receive their cloud model.
    """

    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data"
    year = 2021
    family = "personalized aggregation"
    sample_dp = True
    down = ("cloud",)
    up = ("model",)
    new_client = "has no cloud model before its first upload, so it trains alone as in a first round"

    alpha_k: float = option(
        1e3, "α: how strongly clients attract each other at the server", above=0.0, search=log_between(10, 1e5)
    )
    lam: float = option(
        1.0,
        "λ: the pull of local training to the cloud model has strength λ/α",
        at_least=0.0,
        search=log_between(0.01, 10),
    )
    sigma: float | None = option(
        None, "σ: squared distance at which attraction fades; none: the median over all pairs, each round", above=0.0
    )
    start_from: Literal["cloud", "own"] = option(
        "cloud", "where local training starts: at the cloud model or the own model"
    )
    pfllib_bug: bool = option(False, "as in PFLlib, the cloud model is sent but has no effect: equal to Local")

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["models"] = server.net().all.vector.repeat(len(server.sizes), 1)
        server.state["clouds"] = server.state["models"].clone()
        server.state["met"] = torch.zeros(len(server.sizes), dtype=torch.bool)

    def init(self, client: Client) -> State:
        return {"model": client.net().all.vector}

    def send(self, server: Server, client: int) -> Payload:
        return {"cloud": server.state["clouds"][client].clone()} if server.state["met"][client] else {}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        cloud = None if self.pfllib_bug else payload.get("cloud")  # none before the first upload
        if cloud is not None and self.start_from == "cloud":
            net.all.vector = cloud
        client.train(net.all, pull=None if cloud is None else (cloud, self.lam / self.alpha_k))
        client.state["model"] = net.all.vector
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        models, met = server.state["models"], server.state["met"]
        for r in replies:
            models[r.client], met[r.client] = r["model"], True
        known = models if met.all() else models[met]
        attention = self.attention(squared_distances(known).double())
        weights = attention.to(known)

        def mix(columns: slice) -> None:
            server.state["clouds"][met, columns] = weights @ known[:, columns]  # u_i = Σ_j ξ_ij w_j

        on_all_cores(mix, column_blocks(known.shape[1]))
        server.log(attention=float(1 - attention.diagonal().mean()))

    def attention(self, distances: Tensor) -> Tensor:
        """Return ξ_ij = α·A'(‖w_i − w_j‖²), A(x) = 1 − exp(−x/σ), scaled so that no row exceeds 1; ξ_ii is what is left."""
        n = len(distances)
        if n == 1:
            return torch.ones_like(distances)
        pairs = distances[~torch.eye(n, dtype=torch.bool, device=distances.device)]
        sigma = max(self.sigma or float(pairs.median()), 1e-12)  # equal models have distance 0
        pull = torch.exp(-distances / sigma).fill_diagonal_(0)
        total = pull.sum(1, keepdim=True)
        given = (self.alpha_k / sigma * total).clamp(max=1)  # Σ_{j≠i} ξ_ij
        xi = given * pull / total.clamp(min=1e-300)
        return xi + torch.diag(1 - given[:, 0])

    def welcome(self, server: Server, hello: Payload) -> Payload:
        return {}

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(model=client.state["model"])
