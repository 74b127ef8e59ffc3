from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor.learning import Client, Payload, State, mixed
from fedtailor.learning.elementwise import learned_weights
from fedtailor.learning.sample_weights import taken
from fedtailor.learning.samples import shuffled_pairs
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import among, log_between, option

RECENT = 10  # losses whose standard deviation decides whether the first learning of W has converged


@methods.register("fedala")
@dataclass(frozen=True)
class FedALA(GlobalModel):
    """FedAvg in which each client mixes the global top layers with its own, entry by entry, by learned weights W (Zhang et al., 2023).

    The whole model travels in both directions; W stays with the client.
    """

    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning"
    year = 2023
    family = "personalized aggregation"
    sample_dp = (
        "the mixing weights of its top layers are learned from samples without noise, and the mixed layers are sent"
    )
    keeps = ("top", "weights", "last_round")
    new_client = "mixes its top layers with the global ones, then trains as in one round, sending nothing back"

    layers: int = option(
        2,
        "p: number of top parameter tensors to mix; 2: weight and bias of the last layer",
        at_least=1,
        search=among(1, 2, 3),
    )
    s: float = option(
        0.8, "fraction of the training samples that W is learned from, drawn anew each time", above=0, at_most=1
    )
    eta_w: float = option(1.0, "step size of the weights W", at_least=0.0, search=log_between(0.1, 2))
    threshold: float = option(
        0.1, "the first time, learn W until the standard deviation of its last 10 losses is below this", at_least=0.0
    )
    first_epochs: int = option(50, "most epochs on W the first time; later there is one", at_least=1)
    fixed_w: float | None = option(None, "one constant weight for all entries; 1 is FedAvg", at_least=0, at_most=1)
    sync_all: bool = option(
        True,
        "every client mixes after each round; false: only participants do, before they train, and the others keep their model",
    )

    def init(self, client: Client) -> State:
        return {"top": client.net().top(self.layers).vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        if not self.sync_all:
            self.sync(client, payload)
        net = self._net(client, payload, client.state["top"])
        client.train(net.all)
        client.state["top"] = net.top(self.layers).vector
        if not self.sync_all:
            client.state.update(model=net.all.vector, last_round=torch.tensor(client.round))
        if "weights" in client.state:
            client.log(global_share=client.state["weights"].mean().item())
        return {"model": net.all.vector}

    @property
    def syncs_everyone(self) -> bool:
        return self.sync_all

    def sync(self, client: Client, payload: Payload) -> None:
        client.state.update(self._aggregated(client, payload))

    def personal(self, client: Client, payload: Payload) -> Net:
        took_part = client.round == client.state.get("last_round", 0)
        if not self.sync_all and not took_part:
            return client.net(model=client.state.get("model"))
        top = client.state["top"] if self.sync_all else self._aggregated(client, payload)["top"]
        return self._net(client, payload, top)

    def _aggregated(self, client: Client, payload: Payload) -> State:
        """Return the top ŵ = w_i + (w − w_i)⊙W, and W, which is learned on some of the samples with all else frozen."""
        net, own = client.net(model=payload["model"]), client.state["top"]
        top = net.top(self.layers)
        received = top.vector
        if self.fixed_w is not None:
            return {"top": mixed(received, own, self.fixed_w)}
        if torch.equal(own, received):
            return {"top": own}
        weights = client.state.get("weights", torch.ones_like(own))
        of_head = len(top) <= len(net.head)
        x, y = self._subset(client, net, embedded=of_head)
        logits = net.classify if of_head else net
        losses: list[float] = []
        for _ in range(1 if "weights" in client.state else self.first_epochs):
            batches = shuffled_pairs(x, y, client.protocol.batch, 1, client.rng("weights"))
            weights, loss = learned_weights(
                top, own, received, weights, batches, self.eta_w, logits=logits, loss=client.loss
            )
            losses.append(loss)
            if len(losses) >= RECENT and np.std(losses[-RECENT:]) < self.threshold:
                break
        return {"top": mixed(received, own, weights), "weights": weights}

    def _subset(self, client: Client, net: Net, *, embedded: bool) -> tuple[Tensor, Tensor]:
        """Return a random subset of the samples; only their features, which do not change, if only the head is mixed."""
        n = len(client.samples)
        chosen = torch.randperm(n, generator=client.rng("weights"))[: max(1, round(self.s * n))]
        net.eval()
        x = client.embed(net)[0][chosen] if embedded else client.samples.take(chosen)
        return x, taken(client.samples.y, chosen)

    def _net(self, client: Client, payload: Payload, top: Tensor) -> Net:
        net = client.net(model=payload["model"])
        net.top(self.layers).vector = top
        return net
