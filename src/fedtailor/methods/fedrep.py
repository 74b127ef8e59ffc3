from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload
from fedtailor.methods.base import methods
from fedtailor.methods.fedper import FedPer
from fedtailor.registry import option


@methods.register("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """Share the body, keep the head; fit the head first, then the body (Collins et al., 2021)."""

    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning"
    year = 2021

    head_epochs: int = option(1, "epochs on the head before the body trains", at_least=0)

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        client.train(net.head, epochs=self.head_epochs)
        client.train(net.body)
        client.state["head"] = net.head.vector
        return {"body": net.body.vector}
