from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload, State
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("ditto")
@dataclass(frozen=True)
class Ditto(GlobalModel):
    """Train a global model by FedAvg and, at each client, a personal model that is pulled to it (Li et al., 2021).

    Only the global model travels; personal models stay with their clients.
    """

    paper = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization"
    year = 2021
    family = "regularized"
    sample_dp = True
    home = ("personal",)
    keeps = ("personal",)
    new_client = "starts from the global model and trains its own as in one round, sending nothing back"

    lam: float = option(
        1.0, "λ: strength of the pull to the global model; 0 is Local", at_least=0.0, search=log_between(0.01, 10)
    )
    personal_epochs: int = option(1, "epochs on the personal model per round", at_least=0)

    def init(self, client: Client) -> State:
        return {"personal": client.net("personal").all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        own = self.personal(client, payload)
        client.train(own.all, epochs=self.personal_epochs, pull=(payload["model"], self.lam))
        client.state["personal"] = own.all.vector
        net = client.net(model=payload["model"])
        client.train(net.all, purpose="global")
        return {"model": net.all.vector}

    def onboard(self, client: Client, payload: Payload) -> None:
        client.state["personal"] = payload["model"]
        super().onboard(client, payload)

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net("personal", model=client.state["personal"])
