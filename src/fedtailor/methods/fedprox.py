from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload, Pull
from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.registry import log_between, option


@methods.register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term μ/2·‖w − w_global‖² in local training (Li et al., 2020).

    The whole model travels, as in FedAvg.
    """

    paper = "Li et al., Federated Optimization in Heterogeneous Networks"
    year = 2020
    family = "regularized"
    sample_dp = True

    mu: float = option(
        0.001, "μ: strength of the pull to the global model; 0 is FedAvg", at_least=0.0, search=log_between(0.001, 1)
    )

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.received(client, payload)
        client.train(net.all, pull=Pull(payload["model"], self.mu, self.shared(net)))
        return self.reply(client, net)
