from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fedtailor.learning import Client, Payload, Reply, Server, State, mixed
from fedtailor.learning.elementwise import learned_weights
from fedtailor.learning.samples import shuffled_pairs
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import among, log_between, option


@methods.register("fedah")
@dataclass(frozen=True)
class FedAH(Method):
    """Share body and head; each client mixes the global head with its own, entry by entry, by learned weights W (Zhou et al., 2024). As
    in FedRep, the head trains first, then the body.

    Body and head travel in both directions; W stays with the client.
    """

    paper = "Zhou et al., FedAH: Aggregated Head for Personalized Federated Learning"
    year = 2024
    family = "model splitting"
    sample_dp = "the mixing weights of its head are learned from samples without noise, and the mixed head is sent"
    down = ("body", "head")
    up = ("body", "head")
    keeps = ("weights", "last_round")
    averaged = ("body", "head")
    new_client = "mixes its head with the global one, then trains as in one round, sending nothing back"

    head_epochs: int = option(1, "epochs on the head before the body trains", at_least=0, search=among(1, 5))
    eta_w: float = option(1.0, "step size of the weights W", at_least=0.0, search=log_between(0.1, 2))
    w_epochs: int = option(1, "epochs on the weights W each time they are learned", at_least=0)
    clamp: bool = option(True, "keep the weights W between 0 and 1")
    fixed_w: float | None = option(
        None,
        "one constant weight for all entries: 0 keeps the own head, 1 takes the global one",
        at_least=0,
        at_most=1,
    )
    sync_all: bool = option(
        True,
        "every client mixes after each round; false: only participants do, before they train, and the others keep their model",
    )

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        net = server.net()
        server.state.update(body=net.body.vector, head=net.head.vector)

    def init(self, client: Client) -> State:
        return {"head": client.net().head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        if not self.sync_all:
            self.sync(client, payload)
        net = client.net(body=payload["body"], head=client.state["head"])
        client.train(net.head, epochs=self.head_epochs)
        client.train(net.body)
        client.state["head"] = net.head.vector
        if not self.sync_all:
            client.state.update(body=net.body.vector, last_round=torch.tensor(client.round))
        if "weights" in client.state:
            client.log(global_share=client.state["weights"].mean().item())
        return {"body": net.body.vector, "head": net.head.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")
        server.average(replies, "head")

    @property
    def syncs_everyone(self) -> bool:
        return self.sync_all

    def sync(self, client: Client, payload: Payload) -> None:
        client.state.update(self._aggregated(client, payload))

    def personal(self, client: Client, payload: Payload) -> Net:
        took_part = client.round == client.state.get("last_round", 0)
        if not self.sync_all and not took_part:
            return client.net(body=client.state.get("body"), head=client.state["head"])
        head = client.state["head"] if self.sync_all else self._aggregated(client, payload)["head"]
        return client.net(body=payload["body"], head=head)

    def _aggregated(self, client: Client, payload: Payload) -> State:
        """Return the aggregated head ĥ = h_i + (h − h_i)⊙W, and W, which is learned with body and both heads frozen."""
        own, received = client.state["head"], payload["head"]
        if self.fixed_w is not None:
            return {"head": mixed(received, own, self.fixed_w)}
        weights = client.state.get("weights", torch.ones_like(own))
        if not torch.equal(own, received):
            net = client.net(body=payload["body"])
            z, y = client.embed(net)
            batches = shuffled_pairs(z, y, client.protocol.batch, self.w_epochs, client.rng("weights"))
            weights, _ = learned_weights(
                net.head,
                own,
                received,
                weights,
                batches,
                self.eta_w,
                logits=net.classify,
                loss=client.loss,
                clamp=self.clamp,
            )
        return {"head": mixed(received, own, weights), "weights": weights}
