from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Reply, Server, State, class_means, weighted_mean
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option


class Gaussian(NamedTuple):
    """Features of each class: its mean μ_c, and the covariance Σ all classes share, in float64 because Σ has to be solved with."""

    means: Tensor
    covariance: Tensor

    def mixed(self, own: Gaussian, beta: Tensor) -> Gaussian:
        """β of the own statistics, 1 − β of these; β is (β_μ, β_Σ), or one for both."""
        return Gaussian(self.means.lerp(own.means, beta[0]), self.covariance.lerp(own.covariance, beta[-1]))


@methods.register("pfedfda")
@dataclass(frozen=True)
class PFedFDA(Method):
    """Share the body and a Gaussian of its features; a client's head is the Bayes rule of it, mixed with its own (McLaughlin & Su, 2024).

    The share β of the own statistics is what predicts best in two-fold cross-validation on the client's samples. It is fitted again
    wherever the personal model is asked for, with folds that do not depend on chance, so that this model follows from the payload alone.
    """

    paper = "McLaughlin and Su, Personalized Federated Learning via Feature Distribution Adaptation"
    year = 2024
    family = "prototypes"
    down = ("body", "means", "covariance")
    up = ("body", "mixed_means", "mixed_covariance")
    keeps = ("beta",)
    averages = True
    tasks = ("multiclass",)
    new_client = "computes its head from the shared statistics and its own; nothing trains"

    eps: float = option(1e-4, "ε, added to priors and own covariances, and the shrinkage of any covariance", above=0.0)
    single_beta: bool = option(False, "one share β for means and covariance")
    local_beta: bool = option(False, "β = 1: own statistics only")
    identity: bool = option(
        True, "add the identity to own covariances; without it, few samples make the training diverge"
    )

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
        server.state["means"] = weighted_mean(replies, "mixed_means")
        server.state["covariance"] = weighted_mean(replies, "mixed_covariance")

    def personal(self, client: Client, payload: Payload) -> Net:
        net = client.net(body=payload["body"])
        shared = _shared(payload)
        mixed = self._adapted(client, net, shared)[0] if len(client.samples) else shared
        net.head.vector = self._head(client, mixed)
        return net

    def onboard(self, client: Client, payload: Payload) -> None:
        """Nothing: its head follows from the payload and its samples."""

    def _head(self, client: Client, gaussian: Gaussian) -> Tensor:
        weight, bias = bayes_rule(gaussian, self._priors(client), self.eps)
        return torch.cat([weight.reshape(-1), bias])

    def _priors(self, client: Client) -> Tensor:
        shares = client.label_counts.double() / max(len(client.samples), 1) + self.eps
        return shares / shares.sum()

    def _adapted(self, client: Client, net: Net, shared: Gaussian) -> tuple[Gaussian, Tensor]:
        """The shared statistics mixed with the client's own under this net's body, and the β they are mixed with."""
        z, y = client.embed(net)
        z = z.double()
        beta = self._fitted_beta(client, z, y, shared)
        return shared.mixed(self._own(z, y, shared), beta), beta

    def _own(self, z: Tensor, y: Tensor, shared: Gaussian) -> Gaussian:
        """Means and pooled covariance of the own features; the mean of an absent class is the shared one."""
        means, counts = class_means(z, y, len(shared.means))
        means = torch.where((counts > 0).unsqueeze(1), means, shared.means)
        rest = z - means[y]
        scatter = rest.T @ rest / max(len(y) - 1, 1)
        floor = self.eps + float(self.identity)  # makes it positive definite, however few the samples
        return Gaussian(means, scatter + floor * torch.eye(z.shape[1], dtype=z.dtype, device=z.device))

    def _fitted_beta(self, client: Client, z: Tensor, y: Tensor, shared: Gaussian) -> Tensor:
        """The β in [0, 1]² with the least cross-entropy in two-fold cross-validation; where that fails, the last one."""
        if self.local_beta:
            return torch.ones(2, dtype=z.dtype, device=z.device)
        enough = client.label_counts[y] >= 2  # a class has to be in both folds
        if not enough.any():
            return torch.zeros(2, dtype=z.dtype, device=z.device)
        z, y = z[enough], y[enough]
        first = alternate(y)
        priors = self._priors(client)
        try:
            folds = [
                loss_of_beta(shared, self._own(z[~held], y[~held], shared), priors, self.eps, z[held], y[held])
                for held in (first, ~first)
            ]
            beta = least_in_unit_box(
                lambda b: folds[0](b) + folds[1](b), z.new_full((1 if self.single_beta else 2,), 0.5)
            )
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return client.state["beta"].to(z)
        return beta.expand(2).clone() if torch.isfinite(beta).all() else client.state["beta"].to(z)


def shrunk(covariance: Tensor, eps: float) -> Tensor:
    """Σ' = (1 − ε)Σ + ε·(tr Σ / d)·I."""
    d = len(covariance)
    level = eps * covariance.trace() / d
    return (1 - eps) * covariance + level * torch.eye(d, dtype=covariance.dtype, device=covariance.device)


def bayes_rule(gaussian: Gaussian, priors: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of linear discriminant analysis: log q_c + log N(z; μ_c, Σ') up to a constant."""
    weight = torch.linalg.solve_ex(shrunk(gaussian.covariance, eps), gaussian.means.T).result.T
    return weight, priors.log() - (gaussian.means * weight).sum(1) / 2


def loss_of_beta(
    shared: Gaussian, own: Gaussian, priors: Tensor, eps: float, z: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """Cross-entropy on (z, y) of the Bayes rule of `shared.mixed(own, β)`, as a function of β.

    In the coordinates in which the shared covariance is the identity and the own one diagonal every mix of them is diagonal, so that a
    trial of β solves nothing.
    """
    root = torch.linalg.cholesky(shrunk(shared.covariance, eps))

    def whitened(rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(root, rows.T, upper=False).T

    variances, turn = torch.linalg.eigh(whitened(whitened(shrunk(own.covariance, eps)).T))
    z, shared_means, own_means = (whitened(rows) @ turn for rows in (z, shared.means, own.means))

    def loss(beta: Tensor) -> Tensor:
        means = shared_means.lerp(own_means, beta[0])
        weight = means / (1 + beta[-1] * (variances - 1))
        bias = priors.log() - (means * weight).sum(1) / 2
        return F.cross_entropy(z @ weight.T + bias, y)

    return loss


def alternate(y: Tensor) -> Tensor:
    """A mask of every other sample of each class, in the order they come."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return rank % 2 == 0


def least_in_unit_box(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """L-BFGS on t with β = sin²t, which reaches 0 and 1 at finite t, as a sigmoid would not."""
    t = start.sqrt().asin().requires_grad_()
    solver = torch.optim.LBFGS([t], max_iter=10, max_eval=40, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        value = loss(t.sin().square())
        value.backward()
        return value.item()

    solver.step(closure)
    return t.detach().sin().square()


def _shared(payload: Payload) -> Gaussian:
    return Gaussian(payload["means"].double(), payload["covariance"].double())
