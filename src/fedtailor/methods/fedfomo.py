from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.learning.samples import Samples
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.randomness import torch_stream
from fedtailor.registry import option


@methods.register("fedfomo")
@dataclass(frozen=True)
class FedFomo(Method):
    """Send each client some models of other clients; it combines those that lower its validation loss (Zhang et al., 2021).

    Clients send their model, and for each received model how much it would help them.
    """

    paper = "Zhang et al., Personalized Federated Learning with First Order Model Optimization"
    year = 2021
    family = "personalized aggregation"
    sample_dp = "its clients send how much each model gains on their samples"
    down = ("models",)
    up = ("model", "gains")
    keeps = ("before",)
    new_client = (
        "receives the models that helped others most, combines them and trains as in one round, sending nothing back"
    )

    M: int = option(5, "models of other clients that a client receives per round", at_least=0)
    validation: float = option(
        0.2, "fraction of the training samples held out to compare models on", at_least=0.0, at_most=0.9
    )
    epsilon: float = option(0.3, "ε: probability that a received model is drawn at random", at_least=0.0, at_most=1.0)
    epsilon_decay: float = option(0.05, "decrease of ε per round, down to 0", at_least=0.0)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        n = len(server.sizes)
        server.state["models"] = server.net().all.vector.repeat(n, 1)
        server.state["met"] = torch.zeros(n, dtype=torch.bool)
        server.state["preferences"] = torch.zeros(n, n, dtype=torch.float64)  # P

    def init(self, client: Client) -> State:
        model = client.net().all.vector
        return {"model": model, "before": model}

    def send(self, server: Server, client: int) -> Payload:
        chosen = self.chosen(server, client)
        return {"models": server.state["models"][chosen]} if len(chosen) else {}

    def chosen(self, server: Server, client: int) -> Tensor:
        """Return the clients whose models this client is sent: those it gained most from and, with probability ε each, random ones."""
        others = server.state["met"].clone()
        others[client] = False
        rng = torch_stream(server.protocol.seed, "chosen", server.round, client)
        order = others.nonzero()[:, 0][torch.randperm(int(others.sum()), generator=rng)]  # break ties at random
        ranked = order[server.state["preferences"][client, order].argsort(descending=True, stable=True)]
        epsilon = self.epsilon - self.epsilon_decay * (server.round - 1)
        explored = int((torch.rand(self.M, generator=rng) < epsilon).sum())
        best = ranked[: self.M - explored]
        return torch.cat([best, order[~torch.isin(order, best)][:explored]])

    def fit(self, client: Client, payload: Payload) -> Payload:
        client.samples, held_out = client.split(self.validation)
        up = {}
        if "models" in payload:
            models = torch.cat([payload["models"], client.state["model"].unsqueeze(0)])  # its own is a candidate too
            gains = self._gains(client, models, held_out)
            weights = gains.clamp(min=0)
            if weights.sum() > 0:
                weights /= weights.sum()  # they sum to 1, so Σ ω_n w_n is the paper's w + Σ ω_n (w_n − w)
                client.state["model"] = weights.to(models) @ models
                client.log(own_weight=float(weights[-1]))
            up["gains"] = gains[:-1]
        client.state["before"] = client.state["model"]
        net = self.personal(client, payload)
        client.train(net.all)
        client.state["model"] = net.all.vector
        return {"model": net.all.vector, **up}

    def _gains(self, client: Client, models: Tensor, held_out: Samples) -> Tensor:
        """Return ω_n = (L(w) − L(w_n)) / ‖w_n − w‖, where w is the client's model before its last training."""
        before = client.state["before"]
        scores = [client.score(client.net(model=model), held_out) for model in (before, *models)]
        losses = torch.tensor([s.loss / s.total for s in scores], dtype=torch.float64)
        distances = (models - before).norm(dim=1).to(losses)
        return ((losses[0] - losses[1:]) / (distances + 1e-5)).nan_to_num(0, 0, 0)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        # as they were when models were sent, before the state changes
        chosen = {r.client: self.chosen(server, r.client) for r in replies}
        for r in replies:
            if "gains" in r.payload:
                server.state["preferences"][r.client, chosen[r.client]] += r["gains"]
            server.state["models"][r.client] = r["model"]
            server.state["met"][r.client] = True

    def welcome(self, server: Server, hello: Payload) -> Payload:
        liked = server.state["preferences"].sum(0).masked_fill(~server.state["met"], -torch.inf)
        chosen = liked.argsort(descending=True, stable=True)[: min(self.M, int(server.state["met"].sum()))]
        return {"models": server.state["models"][chosen]} if len(chosen) else {}

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(model=client.state["model"])
