from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload
from fedtailor.methods.base import methods
from fedtailor.methods.fedper import FedPer
from fedtailor.registry import among, option


@methods.register("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """Share the body, keep the head; train the head first, then the body (Collins et al., 2021).

    Only the body travels.
    """

    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning"
    year = 2021
    sample_dp = True

    head_epochs: int = option(
        1, "epochs on the head (on all that is kept) before the body trains", at_least=0, search=among(1, 5, 10)
    )

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.received(client, payload)
        client.train(self.kept(net), epochs=self.head_epochs)
        client.train(self.shared(net))
        return self.reply(client, net)
