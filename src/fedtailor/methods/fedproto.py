from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedtailor.learning import (
    Client,
    Payload,
    Reply,
    Server,
    State,
    class_means,
    mean_of_means,
    near_prototypes,
)
from fedtailor.learning.modules import Modules
from fedtailor.methods.base import Method, methods
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option

UNKNOWN = 1e3  # logits of classes without a prototype are this far below the lowest of the others


class NearestPrototype(nn.Module):
    """Classify by distance: the logit of a class is minus the squared distance of the features to its prototype."""

    prototypes: Tensor
    known: Tensor

    def __init__(self, embedder: nn.Module, prototypes: Tensor, known: Tensor) -> None:
        super().__init__()
        self.embedder = embedder
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embedder(x)
        far = torch.cdist(z, self.prototypes, compute_mode="donot_use_mm_for_euclid_dist").square()
        farthest = far.masked_fill(~self.known, 0.0).amax(dim=1, keepdim=True)
        return -torch.where(self.known, far, farthest + UNKNOWN)  # finite, so that the loss is


@methods.register("fedproto")
@dataclass(frozen=True)
class FedProto(Method):
    """Share class means of features instead of weights; each client pulls its features to the averaged prototypes (Tan et al., 2022).

    Clients send their class means and receive the prototypes; models stay with their clients. The prototypes of a round are those of
    its participants; a class that none of them has is without a prototype until the next round.
    """

    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients"
    year = 2022
    family = "prototypes"
    sample_dp = "its clients send class means of their features"
    down = ("prototypes", "known")
    up = ("means", "counts")
    keeps = ("model",)
    tasks = ("multiclass",)

    lam: float = option(
        1.0, "λ: strength of the pull of features to their class's prototype", at_least=0.0, search=log_between(0.1, 10)
    )
    weighted: bool = option(False, "weight clients by their samples of a class, not equally")
    eval: Literal["head", "proto"] = option("head", "predict with the own head, or with the nearest global prototype")

    def init(self, client: Client) -> State:
        return {"model": client.net().all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=client.state["model"])
        client.train(net.all, loss=near_prototypes(client.loss, payload, self.lam))
        client.state["model"] = net.all.vector
        return means_and_counts(client, net, self.weighted)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.state.update(prototypes_of(replies, self.weighted))

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        net = client.net(model=client.state["model"])
        if self.eval == "head" or "prototypes" not in payload:
            return net
        return NearestPrototype(net.embedder, payload["prototypes"], payload["known"])

    def saved_module(self, modules: Modules, client: int, weights: Mapping[str, Tensor]) -> nn.Module:
        net, _ = modules.lend("model")
        if "prototypes" not in weights:
            return net
        return NearestPrototype(net.embedder, weights["prototypes"], weights["known"])


@methods.register("fedproto-per")
@dataclass(frozen=True)
class FedProtoPer(FedAvgFT):
    """FedAvg with FedProto's pull to prototypes; after the last round every client fine-tunes the global model without it.

    Clients send their model and class means.
    """

    paper = FedProto.paper
    year = FedProto.year
    sample_dp = FedProto.sample_dp
    down = ("model", "prototypes", "known")
    up = ("model", "means", "counts")
    tasks = ("multiclass",)

    lam: float = option(1.0, "λ: strength of the pull of features to their class's prototype", at_least=0.0)
    weighted: bool = option(False, "in prototypes, weight clients by their samples of a class, not equally")
    ft_epochs: int = option(10, "epochs of fine-tuning after the last round", at_least=0)

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.received(client, payload)
        client.train(net.all, loss=near_prototypes(client.loss, payload, self.lam))
        return {**self.reply(client, net), **means_and_counts(client, net, self.weighted)}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        super().aggregate(server, replies)
        server.state.update(prototypes_of(replies, self.weighted))


def means_and_counts(client: Client, net: Net, weighted: bool) -> Payload:
    """Return the client's class means and counts; if unweighted, counts of 1, so that the server learns no number of samples."""
    means, counts = class_means(*client.embed(net), client.classes)
    return {"means": means, "counts": counts if weighted else counts.clamp(max=1)}


def prototypes_of(replies: Sequence[Reply], weighted: bool) -> Payload:
    means, counts = zip(*((r["means"], r["counts"]) for r in replies), strict=True)
    prototypes, known = mean_of_means(means, counts, weighted=weighted)
    return {"prototypes": prototypes, "known": known}
