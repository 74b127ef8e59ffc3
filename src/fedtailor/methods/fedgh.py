from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.learning import Client, Loss, Payload, Reply, Server, State, class_means
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import among, log_between, option


@methods.register("fedgh")
@dataclass(frozen=True)
class FedGH(Method):
    """Keep bodies at the clients; the server trains one head for all on the class means of their features (Yi et al., 2023).

    Clients send the mean feature of each of their classes, and receive the head. The server's softmax covers only the classes that were
    sent in this round, so that the head keeps what it has learned about the others.
    """

    paper = "Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header"
    year = 2023
    family = "prototypes"
    sample_dp = "its clients send class means of their features"
    down = ("head",)
    up = ("means", "labels")
    keeps = ("body", "trained_head")
    tasks = ("multiclass",)

    server_lr: float = option(0.01, "learning rate of the server's head", above=0.0, search=log_between(0.001, 0.1))
    server_epochs: int = option(1, "epochs on the server's head per round", at_least=0, search=among(1, 5))

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["head"] = server.net().head.vector

    def init(self, client: Client) -> State:
        return {"body": client.net().body.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(body=client.state["body"], head=payload["head"])
        client.train(net.all)
        client.state.update(body=net.body.vector, trained_head=net.head.vector)
        means, counts = class_means(*client.embed(net), client.classes)
        labels = counts.nonzero().squeeze(1)
        return {"means": means[labels], "labels": labels}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        net = server.net(head=server.state["head"])
        means, labels = torch.cat([r["means"] for r in replies]), torch.cat([r["labels"] for r in replies])
        server.train(
            net.head, on=(means, labels), loss=_softmax_over(labels), lr=self.server_lr, epochs=self.server_epochs
        )
        server.state["head"] = net.head.vector

    def personal(self, client: Client, payload: Payload) -> Net:
        just_trained = "means" in payload
        return client.net(
            body=client.state["body"], head=client.state["trained_head"] if just_trained else payload["head"]
        )


def _softmax_over(labels: Tensor) -> Loss:
    """Return the cross-entropy on features, with a softmax over the classes in `labels` only."""

    def loss(net: Net, z: Tensor, y: Tensor) -> Tensor:
        logits = net.classify(z)
        there = torch.zeros(logits.shape[1], dtype=torch.bool, device=z.device).index_fill(0, labels, True)
        return F.cross_entropy(logits.masked_fill(~there, float("-inf")), y)

    return loss
