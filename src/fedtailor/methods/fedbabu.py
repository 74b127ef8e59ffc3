from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedtailor.learning import Client, Payload, Reply, Server
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import among, option


@methods.register("fedbabu")
@dataclass(frozen=True)
class FedBABU(Method):
    """Train and share only the body under a fixed common head; fine-tune at each client after the last round (Oh et al., 2022).

    Only the body travels; the server averages bodies with equal weights.
    """

    paper = "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification"
    year = 2022
    family = "fine-tuning"
    sample_dp = True
    down = ("body",)
    up = ("body",)
    keeps = ("personal",)
    averaged = ("body",)
    mean_by = "clients"
    new_client = "fine-tunes the common model on its own samples, as everyone does after the last round"

    ft_part: Literal["full", "head", "body"] = option(
        "full", "part that is fine-tuned after the last round", search=among("full", "head")
    )
    ft_epochs: int = option(10, "epochs of fine-tuning after the last round", at_least=0, search=among(5, 10, 25))

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(body=payload["body"])  # the head is the run's initial one, the same for all
        client.train(net.body)
        return {"body": net.body.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body", by="clients")

    @property
    def closing_steps(self) -> int:
        return self.ft_epochs

    def finish(self, client: Client, payload: Payload) -> None:
        net = self.personal(client, payload)
        client.train({"full": net.all, "head": net.head, "body": net.body}[self.ft_part], epochs=1)
        client.state["personal"] = net.all.vector

    def personal(self, client: Client, payload: Payload) -> Net:
        if "personal" in client.state:
            return client.net(model=client.state["personal"])
        return client.net(body=payload["body"])
