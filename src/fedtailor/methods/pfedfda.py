from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Reply, Server, State
from fedtailor.learning.discriminant import Gaussian, bayes_rule, cross_validated_weight, estimated
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option


@methods.register("pfedfda")
@dataclass(frozen=True)
class PFedFDA(Method):
    """Share the body and Gaussian statistics of its features; a client's head is the Bayes rule for these, mixed with its own statistics
    (McLaughlin & Su, 2024).

    Clients send their body, and class means and covariance mixed with the shared ones. The weight β of the own statistics is the best in
    two-fold cross-validation on the client's samples. It is fitted whenever the personal model is needed, with folds that are not random,
    so that this model follows from the payload alone.
    """

    paper = "McLaughlin and Su, Personalized Federated Learning via Feature Distribution Adaptation"
    year = 2024
    family = "prototypes"
    sample_dp = "its clients send means and covariances of their features"
    down = ("body", "means", "covariance")
    up = ("body", "mixed_means", "mixed_covariance")
    keeps = ("beta",)
    averaged = ("body", "mixed_means", "mixed_covariance")
    tasks = ("multiclass",)
    new_client = "computes its head from the shared statistics and its own; nothing trains"

    eps: float = option(1e-4, "ε: added to priors and own variances; also the shrinkage of covariances", above=0.0)
    single_beta: bool = option(False, "one weight β for both means and covariance")
    local_beta: bool = option(False, "β = 1: own statistics only")
    identity: bool = option(True, "add the identity to own covariances; without it, training on few samples diverges")

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        net = server.net()
        head, like = net.classifier, net.head.vector
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise FedTailorError(
                f"pfedfda computes the weight and bias of a linear head, but the head '{net.head_name}' is {type(head).__name__}"
                f"{' without bias' if isinstance(head, nn.Linear) else ''}. Name a linear layer with a bias as the head."
            )
        means = torch.rand(head.weight.shape, generator=server.rng("means"), dtype=like.dtype).to(like.device)
        covariance = torch.eye(head.in_features, dtype=like.dtype, device=like.device)
        server.state.update(body=net.body.vector, means=means, covariance=covariance)

    def init(self, client: Client) -> State:
        return {"beta": torch.full((2,), 0.5, dtype=torch.float64)}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(body=payload["body"])
        shared = _shared(payload)
        net.head.vector = self._head(client, shared)
        client.train(net.body)
        mixed, client.state["beta"] = self._adapted(client, net, shared)
        client.log(beta_means=client.state["beta"][0].item(), beta_covariance=client.state["beta"][1].item())
        statistics = {"mixed_means": mixed.means, "mixed_covariance": mixed.covariance}
        return {"body": net.body.vector, **{name: value.to(payload["body"]) for name, value in statistics.items()}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")
        server.state["means"] = server.mean(replies, "mixed_means")
        server.state["covariance"] = server.mean(replies, "mixed_covariance")

    def personal(self, client: Client, payload: Payload) -> Net:
        net = client.net(body=payload["body"])
        shared = _shared(payload)
        mixed = self._adapted(client, net, shared)[0] if len(client.samples) else shared
        net.head.vector = self._head(client, mixed)
        return net

    def onboard(self, client: Client, payload: Payload) -> None:
        """Do nothing: the head follows from the payload and the client's samples."""

    def _head(self, client: Client, gaussian: Gaussian) -> Tensor:
        weight, bias = bayes_rule(gaussian, self._priors(client), self.eps)
        return torch.cat([weight.reshape(-1), bias])

    def _priors(self, client: Client) -> Tensor:
        priors = client.label_counts.double() / max(len(client.samples), 1) + self.eps
        return priors / priors.sum()

    def _adapted(self, client: Client, net: Net, shared: Gaussian) -> tuple[Gaussian, Tensor]:
        """Return the shared statistics mixed with the client's own under this net's body, and the weights β of its own."""
        z, y = client.embed(net)
        z, floor = z.double(), self.eps + float(self.identity)
        if self.local_beta:
            beta: Tensor | None = torch.ones(2, dtype=z.dtype, device=z.device)
        else:
            priors = self._priors(client)
            beta = cross_validated_weight(z, y, shared, priors, eps=self.eps, floor=floor, single=self.single_beta)
        if beta is None:  # the fit failed: keep the last β
            beta = client.state["beta"].to(z)
        return shared.mixed(estimated(z, y, shared, floor), beta), beta


def _shared(payload: Payload) -> Gaussian:
    return Gaussian(payload["means"].double(), payload["covariance"].double())
