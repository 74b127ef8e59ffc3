from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net


@methods.register("lg-fedavg", "lgfedavg")
@dataclass(frozen=True)
class LGFedAvg(Method):
    """Keep the body, share the head; train both together (Liang et al., 2020)."""

    paper = "Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations"
    year = 2020
    family = "model splitting"
    down = ("head",)
    up: ClassVar[tuple[str, ...]] = ("head",)
    keeps: ClassVar[tuple[str, ...]] = ("body",)
    averages: ClassVar[bool] = True

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["head"] = server.net().head.vector

    def init(self, client: Client) -> State:
        return {"body": client.net().body.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        client.train(net.all)
        client.state["body"] = net.body.vector
        return {"head": net.head.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "head", by="clients")

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(body=client.state["body"], head=payload["head"])
