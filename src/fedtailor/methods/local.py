from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload, State
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net


@methods.register("local", "standalone")
@dataclass(frozen=True)
class Local(Method):
    """Train every client alone; nothing travels. The baseline that a federation has to beat."""

    family = "baseline"
    sample_dp = True
    home = ("model",)
    keeps = ("model",)

    def init(self, client: Client) -> State:
        return {"model": client.net().all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        client.train(net.all)
        client.state["model"] = net.all.vector
        return {}

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(model=client.state["model"])
