from __future__ import annotations

from dataclasses import dataclass

from fedtailor.learning import Client, Payload
from fedtailor.methods.base import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedprox import FedProx
from fedtailor.nets.net import Net
from fedtailor.registry import among, option


@methods.register("fedavg-ft")
@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """Run FedAvg; after the last round every client fine-tunes the global model on its own samples.

    The global model travels; fine-tuned models stay with their clients.
    """

    family = "fine-tuning"
    keeps = ("personal",)

    ft_epochs: int = option(25, "epochs of fine-tuning after the last round", at_least=0, search=among(5, 10, 25))

    @property
    def closing_steps(self) -> int:
        return self.ft_epochs

    def finish(self, client: Client, payload: Payload) -> None:
        net = self.personal(client, payload)
        client.train(net.all, epochs=1)
        client.state["personal"] = net.all.vector

    def personal(self, client: Client, payload: Payload) -> Net:
        tuned = client.state.get("personal")
        return self.received(client, payload) if tuned is None else client.net(model=tuned)


@methods.register("fedprox-ft")
@dataclass(frozen=True)
class FedProxFT(FedAvgFT, FedProx):
    """Run FedProx; after the last round every client fine-tunes the global model without the proximal term.

    The global model travels; fine-tuned models stay with their clients.
    """


@methods.register("fedavg-per")
@dataclass(frozen=True)
class FedAvgPer(FedAvgFT):
    """FedAvg with fine-tuning as in HEART-PFL's tables: for 10 epochs, as many as in a round there.

    The global model travels; fine-tuned models stay with their clients.
    """

    ft_epochs: int = option(10, "epochs of fine-tuning after the last round", at_least=0)


@methods.register("fedprox-per")
@dataclass(frozen=True)
class FedProxPer(FedProxFT):
    """FedProx with fine-tuning as in HEART-PFL's tables: for 10 epochs, as many as in a round there.

    The global model travels; fine-tuned models stay with their clients.
    """

    ft_epochs: int = option(10, "epochs of fine-tuning after the last round", at_least=0)
