from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedtailor.learning import Client, Payload, Reply, Server
from fedtailor.methods.base import Method, methods


@methods.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Method):
    """One model for all: clients train it, the server averages by samples (McMahan et al., 2017)."""

    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data"
    year = 2017
    family = "baseline"
    down: ClassVar[tuple[str, ...]] = ("model",)
    up: ClassVar[tuple[str, ...]] = ("model",)
    averages = True

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["model"] = server.net().all.vector

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        client.train(net.all)
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model")

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        return client.net(model=payload["model"])
