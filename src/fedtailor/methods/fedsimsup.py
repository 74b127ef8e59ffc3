from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedtailor.data.task import CLASSES
from fedtailor.learning import Client, Payload, Reply, Server, State, weighted_mean
from fedtailor.learning.mixing import mix_into_rows
from fedtailor.learning.modules import Modules
from fedtailor.learning.similarity import similarity_weights
from fedtailor.learning.supervision import Supervision
from fedtailor.methods.base import Method, methods
from fedtailor.registry import between, log_between, option


@methods.register("fedsimsup")
@dataclass(frozen=True)
class FedSimSup(Method):
    """Predict with the summed outputs of a private supervisor and of a model that the server keeps for each client; the server moves the
    models of absent clients towards those of participants with similar labels (Liu et al., 2025). Needs join below 1: with full
    participation, no client learns from another.

    Clients send the proportions of their labels once, before the first round, and in each round their model. The supervisor never leaves.
    """

    paper = "Liu et al., Personalized Federated Learning under Local Supervision"
    year = 2025
    family = "personalized aggregation"
    sample_dp = "its clients send their label shares before the first round"
    down = ("model",)
    up = ("model", "labels")
    keeps = ("supervisor",)
    tasks = CLASSES
    bn_buffers = "average"
    new_client = "starts from the mean of all models, weighted by similar labels, and trains as in one round, sending nothing back"

    supervisor: str = option(
        "auto",
        "net of the supervisor: auto (lenet-small for images, else same), same (the run's net), a name, or several such as vit,cnn,lenet, "
        "of which each client draws one",
    )
    supervisor_epochs: int = option(5, "epochs on the supervisor, before the model trains", at_least=0)
    model_epochs: int = option(5, "epochs on the model, in place of the protocol's", at_least=0)
    sim: bool | Literal["fedavg"] = option(
        True, "weight participants by similar labels (true) or by samples (false); fedavg: all clients get the average"
    )
    arch: Literal["parallel", "serial"] = option("parallel", "serial: share the body of one net, its head supervises")
    no_supervisor: bool = option(False, "predict with the model alone, for either arch")
    C: float = option(
        40.0, "from round C·T^gamma on, of T rounds, learning from others weakens", above=0, search=log_between(10, 160)
    )
    gamma: float = option(3 / 7, "exponent in C·T^gamma", at_least=0, search=between(0.1, 0.9))

    def hello(self, client: Client) -> Payload:
        return {"labels": client.label_counts.double() / max(1, len(client.samples))}

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        shared = self.supervision.shared(server.net())
        server.state["models"] = shared.vector.repeat(len(server.sizes), 1)
        server.state["labels"] = torch.stack([hellos[i]["labels"] for i in sorted(hellos)])
        if server.protocol.join_range[0] == 1 and not server.protocol.dropout and self.sim != "fedavg":
            server.warn(
                "with join = 1 FedSimSup is local training, since only absent clients learn from others; set join below 1, such as 0.1"
            )

    def init(self, client: Client) -> State:
        return self.supervision.init(client)

    def send(self, server: Server, client: int) -> Payload:
        return {"model": server.state["models"][client].clone()}

    def fit(self, client: Client, payload: Payload) -> Payload:
        both = self.supervision.supervised(client, payload["model"])
        if both.private is not None:
            purpose = "head" if self.arch == "serial" else "supervisor"
            client.train(both.private, epochs=self.supervisor_epochs, loss=both.private_loss, purpose=purpose)  # (4)
            client.state["supervisor"] = both.private.vector
        client.train(both.shared, epochs=self.model_epochs, loss=both.shared_loss)  # (5)
        if len(self.supervision.names) > 1:
            client.log(group=self.supervision.drawn(client.protocol.seed, client.id))
        return {"model": both.shared.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        models, labels = server.state["models"], server.state["labels"]
        if self.sim == "fedavg":
            models.copy_(weighted_mean(replies, "model").expand_as(models))
            return
        m = torch.tensor(server.sizes, dtype=torch.float64, device=models.device)
        here = torch.tensor([r.client for r in replies], device=models.device)
        absent = torch.ones_like(m, dtype=torch.bool).index_fill(0, here, False)
        weights = self._weights(labels, labels[here], m[here])[absent]
        lam = m[here].mean() / (m[here].mean() + m[absent])  # (9)
        beta = self.beta(server.round, server.protocol.rounds)
        alpha = lam * beta * (weights.sum(1) > 0)  # (8); 0 if no participant has a label in common
        uploads = [r["model"] for r in replies]
        mix_into_rows(models, absent, 1 - alpha[:, None], alpha[:, None] * weights, uploads)  # (7)
        for reply in replies:
            models[reply.client] = reply["model"]  # (6)
        server.log(beta=beta, alpha=float(alpha.sum() / max(1, len(alpha))))

    def _weights(self, labels: Tensor, others: Tensor, samples: Tensor) -> Tensor:
        """Return the weights (rows × others) with which clients with these labels learn from others: by similar labels, or by samples."""
        if self.sim is True:
            return similarity_weights(labels, others)
        return (samples / samples.sum()).expand(len(labels), -1)

    def beta(self, t: int, rounds: int) -> float:
        """Return β of round t, counted from 1, in a run of T = `rounds` rounds (10)."""
        switch = self.C * rounds**self.gamma
        return 1.0 if t < switch else (switch / t) ** 2

    def welcome(self, server: Server, hello: Payload) -> Payload:
        models = server.state["models"]
        m = torch.tensor(server.sizes, dtype=torch.float64, device=models.device)
        weights = self._weights(hello["labels"][None], server.state["labels"], m)[0]
        return {"model": (weights if weights.any() else m / m.sum()).to(models) @ models}

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        return self.supervision.supervised(client, payload["model"]).whole

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        return self.supervision.module(modules, client)

    def groups(self, seed: int, clients: int) -> dict[str, list[int]]:
        """Return the clients that draw each supervisor in a run with this seed."""
        return self.supervision.groups(seed, clients)

    @property
    def supervision(self) -> Supervision:
        return Supervision("none" if self.no_supervisor else self.arch, self.supervisor)
