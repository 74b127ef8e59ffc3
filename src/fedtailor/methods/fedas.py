from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.data.task import CLASSES
from fedtailor.learning import Client, Payload, Reply, Server, State, class_means
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import among, log_between, option


@methods.register("fedas")
@dataclass(frozen=True)
class FedAS(Method):
    """Align the received body with the features of the client's own body, which it replaces; average bodies by Fisher trace (Yang et al.,
    2024).

    Clients send their body and one number, the Fisher trace. A client predicts with the model of its last training; bodies that it
    receives later do not change it.
    """

    paper = "Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning"
    year = 2024
    family = "model splitting"
    sample_dp = "its clients send the Fisher trace of their samples, and align bodies with class means"
    down = ("body",)
    up = ("body", "fisher")
    keeps = ("model",)
    averaged = ("body",)
    mean_by = "own weights"
    tasks = CLASSES
    eval_point = "after_train"
    new_client = "starts from the shared body and trains as in one round, sending nothing back"

    align_epochs: int = option(
        1, "epochs on aligning the received body with the own prototypes", at_least=0, search=among(1, 2, 5)
    )
    align_lr: float = option(0.01, "learning rate of the alignment", above=0.0, search=log_between(0.001, 0.1))
    align_batch: int = option(16, "batch size of the alignment", at_least=1)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector

    def init(self, client: Client) -> State:
        return {"model": client.net().all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        prototypes, _ = class_means(*client.embed(net), client.classes)
        net.body.vector = payload["body"]
        batches = client.batches(self.align_epochs, size=self.align_batch, purpose="align")
        for x, y, step in client.steps(batches, net.body, lr=self.align_lr):
            step(_classwise_distance(net.features(x), y, prototypes))
        client.train(net.all)
        client.state["model"] = net.all.vector
        fisher = _fisher_trace(client, net)
        client.log(fisher=fisher.item())
        return {"body": net.body.vector, "fisher": fisher}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        weights = [r["fisher"].item() for r in replies]
        sound = 0 < sum(weights) < math.inf  # false for NaN as well: then weight by samples
        server.average(replies, "body", by=weights if sound else "samples")

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(model=client.state["model"])

    def onboard(self, client: Client, payload: Payload) -> None:
        # It has no body of its own to align the received one with.
        client.state["model"] = client.net(body=payload["body"]).all.vector
        super().onboard(client, payload)


def _classwise_distance(z: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
    """Return the squared distance to the prototype, mean over dimensions and samples of a class, summed over the batch's classes."""
    per_class = torch.bincount(y, minlength=len(prototypes))
    return ((z - prototypes[y]).square().mean(dim=1) / per_class[y]).sum()


def _fisher_trace(client: Client, net: Net) -> Tensor:
    """Return the squared gradient norm of the mean negative log-likelihood, summed over the batches of one epoch."""
    net.eval()
    trace = torch.zeros((), dtype=torch.float64)
    for x, y in client.batches(1, purpose="fisher"):
        trace += net.all.gradient(client.loss(net(x), y)).double().square().sum().cpu()
    return trace
