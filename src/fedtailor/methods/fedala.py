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
from fedtailor.registry import option

RECENT = 10  # losses whose spread tells whether the first learning of weights has settled


@methods.register("fedala")
@dataclass(frozen=True)
class FedALA(GlobalModel):
    """FedAvg whose clients start from own and global top layers mixed entry by entry, with learned weights (Zhang et al., 2023)."""

    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning"
    year = 2023
    family = "personalized aggregation"
    keeps = ("top", "weights", "last_round")
    new_client = "mixes its top layers with the global ones, then trains as in one round, sending nothing back"

    layers: int = option(
        2, "p: parameter tensors to mix, from the top; 2 are weight and bias of the last layer", at_least=1
    )
    s: float = option(
        0.8, "share of the training samples, drawn anew each time, that the weights W learn from", above=0, at_most=1
    )
    eta_w: float = option(1.0, "step size of the weights W", at_least=0.0)
    threshold: float = option(
        0.1, "the first time, learn W until its last 10 losses deviate by less than this", at_least=0.0
    )
    first_epochs: int = option(50, "the most epochs on W the first time; later it is one", at_least=1)
    fixed_w: float | None = option(None, "one weight for all entries, none learned: 1 is FedAvg", at_least=0, at_most=1)
    sync_all: bool = option(
        True,
        "every client mixes after each round; false: only who takes part, before it trains; who sits out keeps its model",
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
        if not self.sync_all and client.round != client.state.get("last_round", 0):  # it sat out: it has what it had
            return client.net(model=client.state.get("model"))
        top = client.state["top"] if self.sync_all else self._aggregated(client, payload)["top"]
        return self._net(client, payload, top)

    def _aggregated(self, client: Client, payload: Payload) -> State:
        """The top ŵ = w_i + (w − w_i)⊙W, and W learned for it on a random share of the samples, all else frozen."""
        net, own = client.net(model=payload["model"]), client.state["top"]
        top = net.top(self.layers)
        received = top.vector
        if self.fixed_w is not None:
            return {"top": mixed(received, own, self.fixed_w)}
        if torch.equal(own, received):
            return {"top": own}
        weights = client.state.get("weights", torch.ones_like(own))
        of_head = len(top) <= len(net.head)
        x, y = self._share(client, net, embedded=of_head)
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

    def _share(self, client: Client, net: Net, *, embedded: bool) -> tuple[Tensor, Tensor]:
        """A random share of the samples; their features where only the head is mixed, since these stay the same."""
        n = len(client.samples)
        chosen = torch.randperm(n, generator=client.rng("weights"))[: max(1, round(self.s * n))]
        net.eval()
        x = client.embed(net)[0][chosen] if embedded else client.samples.take(chosen)
        return x, taken(client.samples.y, chosen)

    def _net(self, client: Client, payload: Payload, top: Tensor) -> Net:
        net = client.net(model=payload["model"])
        net.top(self.layers).vector = top
        return net
