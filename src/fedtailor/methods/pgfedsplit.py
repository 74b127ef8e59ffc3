from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Reply, Server, State, class_means, mixed, near_prototypes
from fedtailor.learning.gaussian import drawn_samples, gaussians_of
from fedtailor.learning.mixing import weighted_mean
from fedtailor.learning.sample_weights import weighted, weights_of
from fedtailor.learning.search import best_share
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option

ENOUGH = 2048  # samples that α is searched with


@methods.register("pgfedsplit")
@dataclass(frozen=True)
class PGFedSplit(Method):
    """Average bodies each round and heads every τ rounds, τ adapting; heads also train on features drawn by class (Kang and Song, 2026)."""

    paper = "Kang and Song, Separate Aggregation of Split Network for Personalized Federated Learning"
    year = 2026
    family = "model splitting"
    down = ("body", "head", "prototypes", "known", "spread")
    up = ("body", "head", "alpha", "prototypes", "classes", "squares")
    keeps = ("adapted",)
    averages = True
    tasks = ("multiclass",)
    eval_point = "after_train"

    lam: float = option(5.0, "λ: pull of features to their class's global prototype while the body trains", at_least=0)
    proto_reg: bool = option(True, "pull features to prototypes at all")
    proto_reduction: Literal["mean", "sum"] = option("mean", "that squared distance: mean or sum over dimensions")
    tau: int = option(5, "τ(0): rounds from one aggregation of heads to the next, at first", at_least=1)
    tau_min: int = option(1, "least τ", at_least=1)
    tau_max: int = option(20, "greatest τ", at_least=1)
    apa: bool = option(True, "adapt τ to how much clients hold on to their own heads")
    fixed_tau: int | None = option(None, "a τ that never changes, in place of tau and apa", at_least=1)
    head_agg: bool = option(True, "aggregate heads at all; false keeps them with their clients")
    beta: float = option(0.1, "β: weight of the KL term that draws a head long alone to the others", at_least=0)
    temperature: float = option(1.0, "temperature of the distributions in the KL term", above=0)
    fixed_alpha: float | None = option(None, "one share of the own head for all, none learned", at_least=0, at_most=1)
    gaussian: bool = option(True, "train heads on features drawn from Gaussians as well as on real ones")
    ratio: float = option(0.5, "r: share of drawn features among those a head trains on", at_least=0, at_most=0.99)
    cov: Literal["diag", "total", "full"] = option(
        "diag",
        "covariance of a class: of clients' prototypes (diag: variances only, full) or total, within clients as well",
    )
    gamma_mode: Literal["share", "one"] = option(
        "share", "scale of the noise: a class's share among own labels (most frequent: 1), or one"
    )
    label_prior: Literal["local", "uniform"] = option("local", "labels of drawn features: as own ones, or all alike")
    clip_nonneg: bool = option(False, "clip drawn features at zero, as a ReLU would")
    head_epochs: int | None = option(None, "epochs on the head; none is the protocol's", at_least=0)
    base_epochs: int | None = option(None, "epochs on the body; none is the protocol's", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._adaptive and not self.tau_min <= self.tau <= self.tau_max:
            raise FedTailorError(
                f"method.tau = {self.tau} must lie between tau_min = {self.tau_min} and tau_max = {self.tau_max}, where τ may move."
            )

    @property
    def _adaptive(self) -> bool:
        return self.apa and self.fixed_tau is None

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector
        if self.head_agg:
            server.state["tau"] = torch.tensor(self.tau if self.fixed_tau is None else self.fixed_tau)
            server.state["waited"] = torch.tensor(0)  # s, rounds since heads were aggregated
            server.state["alpha"] = torch.tensor(0.0, dtype=torch.float64)  # the mean of the last delivery

    def init(self, client: Client) -> State:
        return {"head": client.net().head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.personal(client, payload)
        z, y = self._head_samples(client, net, payload)
        reply: Payload = {}
        if "head" in payload:
            alpha = self._alpha(client, net, payload["head"], z, y) if self.fixed_alpha is None else self.fixed_alpha
            net.head.vector = mixed(client.state["head"], payload["head"], alpha)
            client.state["adapted"] = torch.tensor(client.round - 1)
            client.log(alpha=alpha)
            reply["alpha"] = torch.tensor(alpha, dtype=torch.float64)
        client.train(net.head, epochs=self.head_epochs, on=(z, y))
        loss = None
        if self.proto_reg and "prototypes" in payload:
            dimensions = payload["prototypes"].shape[1] if self.proto_reduction == "sum" else 1
            loss = near_prototypes(client.loss, payload["prototypes"], payload["known"], self.lam * dimensions)
        client.train(net.body, epochs=self.base_epochs, loss=loss)
        client.state["head"] = net.head.vector
        if self.head_agg:
            reply["head"] = net.head.vector
        if self.gaussian or self.proto_reg:
            z, y = client.embed(net)
            reply["prototypes"], counts = class_means(z, y, client.classes)
            reply["classes"] = counts > 0
            if self.gaussian and self.cov == "total":
                reply["squares"], _ = class_means(z.square(), y, client.classes)
        return {"body": net.body.vector, **reply}

    def _head_samples(self, client: Client, net: Net, payload: Payload) -> tuple[Tensor, Tensor]:
        """D̃_i: the features of all own samples under the received body, and drawn ones."""
        z, y = client.embed(net)
        count = math.ceil(self.ratio / (1 - self.ratio) * len(y) - 1e-9)
        if "spread" not in payload or not count:
            return z, y
        centres, spread, known = (payload[name] for name in ("prototypes", "spread", "known"))
        uniform, scaled = self.label_prior == "uniform", self.gamma_mode == "share"
        counts, rng = client.label_counts.to(z.dtype), client.rng("gaussian")
        drawn, labels = drawn_samples(centres, spread, known, counts, count, rng, uniform=uniform, scaled=scaled)
        weights = weights_of(y)
        if weights is not None:  # drawn features count as much as own ones on average
            weights = torch.cat([weights, weights.mean().expand(len(labels))])
        both = torch.cat([z, drawn.clamp(min=0) if self.clip_nonneg else drawn])
        return both, weighted(torch.cat([y, labels]), weights)

    def _alpha(self, client: Client, net: Net, received: Tensor, z: Tensor, y: Tensor) -> float:
        """The share α of the own head that minimizes E[CE(α·own + (1−α)·received) + βΔα²·KL(own ‖ received)]."""
        if len(y) > ENOUGH:
            chosen = torch.randperm(len(y), generator=client.rng("alpha"))[:ENOUGH].to(y.device)
            z, y = z[chosen], y[chosen]
        own, other = (_logits(net, head, z) for head in (client.state["head"], received))
        gap = max(0, client.round - 1 - int(client.state.get("adapted", 0)))  # Δ; the paper's first round is 0
        return best_share(own, other, y.cpu(), self.beta * min(gap, 2 * self.tau_max), self.temperature)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "body")
        if self.gaussian or self.proto_reg:
            spread = self.cov if self.gaussian else None
            server.state.update(gaussians_of([r.payload for r in replies], server.state, spread))
        if self.head_agg:
            self._aggregate_heads(server, replies)

    def _aggregate_heads(self, server: Server, replies: Sequence[Reply]) -> None:
        """Algorithm 1, lines 13 to 27: a head in the state is one that was delivered in this round."""
        state, tau = server.state, int(server.state["tau"])
        if state.pop("head", None) is not None:
            # Rounded: equal shares have equal means, however many clients reply.
            alpha = round(float(torch.stack([r["alpha"] for r in replies]).mean()), 9)
            before = float(state["alpha"])
            if self._adaptive:
                tau = min(max(tau - (alpha > before) + (alpha < before), self.tau_min), self.tau_max)
            state["tau"], state["alpha"] = torch.tensor(tau), torch.tensor(alpha, dtype=torch.float64)
            server.log(alpha_mean=alpha)
        state["waited"] = state["waited"] + 1
        if state["waited"] >= tau:
            state["head"], state["waited"] = weighted_mean(replies, "head"), torch.tensor(0)
        server.log(tau=tau)

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(body=payload["body"], head=client.state["head"])


@torch.no_grad()
def _logits(net: Net, head: Tensor, z: Tensor) -> Tensor:
    net.head.vector = head
    return net.classify(z).cpu().double()  # not every device knows doubles
