from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net


@methods.register("fedper")
@dataclass(frozen=True)
class FedPer(Method):
    """Share the body, keep the head; train both together (Arivazhagan et al., 2019)."""

    paper = "Arivazhagan et al., Federated Learning with Personalization Layers"
    year = 2019
    family = "model splitting"
    down: ClassVar[tuple[str, ...]] = ("body",)
    up: ClassVar[tuple[str, ...]] = ("body",)
    keeps: ClassVar[tuple[str, ...]] = ("head",)
    averages = True

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector

    def init(self, client: Client) -> State:
        return {"head": client.net().head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        client.train(net.all)
        client.state["head"] = net.head.vector
        return {"body": net.body.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(body=payload["body"], head=client.state["head"])
