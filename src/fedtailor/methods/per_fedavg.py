from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

from torch import Tensor

from fedtailor.learning import Client, Payload
from fedtailor.learning.sample_weights import cut
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option

Batch = tuple[Tensor, Tensor]


@methods.register("per-fedavg", "perfedavg")
@dataclass(frozen=True)
class PerFedAvg(GlobalModel):
    """Learn a common initialization by MAML, from which one gradient step on own samples gives a good model (Fallah et al., 2020).

    Only the common initialization travels.
    """

    paper = "Fallah et al., Personalized Federated Learning: A Meta-Learning Approach"
    year = 2020
    family = "meta"
    sample_dp = "its meta-gradient takes steps on parts of a batch"
    new_client = "takes one step from the common initialization on a batch of its own samples"

    variant: Literal["first-order", "hessian-free"] = option(
        "first-order", "omit the second derivative, or approximate it by finite differences"
    )
    alpha: float | None = option(None, "α: step size of the adaptation to own samples; none: lr", at_least=0.0)
    beta: float | None = option(None, "β: step size of the common initialization; none: lr", at_least=0.0)
    delta: float = option(1e-3, "δ: step of the finite differences in the hessian-free variant", above=0.0)

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        alpha = self._alpha(client)
        roles = 2 if self.variant == "first-order" else 3
        batches = client.batches(size=roles * client.protocol.batch, purpose="meta")
        for x, y, step in client.steps(batches, net.all, lr=self.beta):
            support, query, *third = pieces(x, y, roles, smallest=2 if net.has_batchnorm else 1)
            w = net.all.weights.detach()
            net.all.step(_loss(client, net, support), alpha)  # u = w − α∇f(w; B1)
            loss = _loss(client, net, query)
            g = net.all.gradient(loss)  # ∇f(u; B2)
            if third:
                g = g - alpha * self._curvature(client, net, w, g, third[0])
            net.all.weights = w
            step(loss, gradient=g)  # w ← w − βg
        return {"model": net.all.vector}

    def _curvature(self, client: Client, net: Net, w: Tensor, g: Tensor, batch: Batch) -> Tensor:
        """Approximate H(w)·g by [∇f(w + δg) − ∇f(w − δg)] / 2δ."""
        net.all.weights = w + self.delta * g
        ahead = net.all.gradient(_loss(client, net, batch))
        net.all.weights = w - self.delta * g
        behind = net.all.gradient(_loss(client, net, batch))
        return (ahead - behind) / (2 * self.delta)

    def personal(self, client: Client, payload: Payload) -> Net:
        """Return the common initialization after one step on one random batch of the client's training samples."""
        net = client.net(model=payload["model"])
        one = islice(client.batches(1, purpose="adapt"), 1)
        for x, y, _ in client.steps(one, net.all):
            net.all.step(client.loss(net(x), y), self._alpha(client))
        return net

    def _alpha(self, client: Client) -> float:
        """The step size of the adaptation. It defines what is learned, so it is plain SGD and follows no schedule."""
        return client.protocol.lr if self.alpha is None else self.alpha


def _loss(client: Client, net: Net, batch: Batch) -> Tensor:
    x, y = batch
    return client.loss(net(x), y)


def pieces(x: Tensor, y: Tensor, count: int, smallest: int = 1) -> Iterator[Batch]:
    """Cut a batch into `count` disjoint pieces; if it is too small, into fewer, some of which are then used more than once."""
    cuts = max(1, min(count, len(y) // smallest))
    return islice(cycle(zip(x.tensor_split(cuts), cut(y, cuts), strict=True)), count)
