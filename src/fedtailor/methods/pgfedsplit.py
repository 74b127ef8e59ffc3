from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Payload, Reply, Server, State, mixed, near_prototypes
from fedtailor.learning.gaussian import class_statistics, gaussians_of, with_drawn_samples
from fedtailor.learning.head_mixing import best_head_weight
from fedtailor.methods.base import Method, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("pgfedsplit")
@dataclass(frozen=True)
class PGFedSplit(Method):
    """Average bodies every round but heads only every τ rounds, where τ adapts; train heads also on features drawn from class-wise
    Gaussians (Kang and Song, 2026).

    Clients send their body, head and class prototypes every round. In a round in which the averaged head arrives, a client mixes it with
    its own head by a learned weight α, and sends α too.
    """

    paper = "Kang and Song, Separate Aggregation of Split Network for Personalized Federated Learning"
    year = 2026
    family = "model splitting"
    sample_dp = "its clients send class means of their features, and weights learned on their samples"
    down = ("body", "head", "prototypes", "known", "spread")
    up = ("body", "head", "alpha", "prototypes", "classes", "squares")
    keeps = ("adapted",)
    averaged = ("body", "head")
    tasks = ("multiclass",)
    eval_point = "after_train"

    lam: float = option(5.0, "λ: weight of the prototype distance", at_least=0, search=log_between(0.5, 20))
    proto_reg: bool = option(True, "while the body trains, pull features to their class's global prototype")
    proto_reduction: Literal["mean", "sum"] = option("mean", "squared distance: mean or sum over dimensions")
    tau: int = option(5, "τ(0): rounds between two aggregations of heads, at the start", at_least=1)
    tau_min: int = option(1, "smallest τ", at_least=1)
    tau_max: int = option(20, "largest τ", at_least=1)
    apa: bool = option(True, "adapt τ to how much of their own heads clients keep (APA)")
    fixed_tau: int | None = option(None, "constant τ, in place of tau and apa", at_least=1)
    head_agg: bool = option(True, "aggregate heads; false: every client keeps its own")
    beta: float = option(
        0.1, "β: weight of the KL term against an old own head", at_least=0, search=log_between(0.01, 1)
    )
    temperature: float = option(1.0, "temperature of the softmax in the KL term", above=0)
    fixed_alpha: float | None = option(None, "constant weight α of the own head; none: learned", at_least=0, at_most=1)
    gaussian: bool = option(True, "train heads also on features drawn from class-wise Gaussians (GAU)")
    ratio: float = option(0.5, "r: fraction of drawn features in a head's training set", at_least=0, at_most=0.99)
    cov: Literal["diag", "total", "full"] = option(
        "diag", "covariance per class: of the clients' prototypes (diag: variances only), or total variances"
    )
    gamma_mode: Literal["share", "one"] = option("share", "γ, scale of noise: relative frequency of the class, or 1")
    label_prior: Literal["local", "uniform"] = option("local", "distribution of the labels of drawn features")
    clip_nonneg: bool = option(False, "clip drawn features at zero, as ReLU does")
    head_epochs: int | None = option(None, "epochs on the head; none: the protocol's epochs", at_least=0)
    base_epochs: int | None = option(None, "epochs on the body; none: the protocol's epochs", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.apa and self.fixed_tau is None and not self.tau_min <= self.tau <= self.tau_max:
            raise FedTailorError(
                f"method.tau = {self.tau} must lie between tau_min = {self.tau_min} and tau_max = {self.tau_max}, where τ may move."
            )

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["body"] = server.net().body.vector
        if self.head_agg:
            server.state["tau"] = torch.tensor(self.tau if self.fixed_tau is None else self.fixed_tau)
            server.state["waited"] = torch.tensor(0)  # s: rounds since the last aggregation of heads
            server.state["alpha"] = torch.tensor(0.0, dtype=torch.float64)  # mean α of the last delivery

    def init(self, client: Client) -> State:
        return {"head": client.net().head.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        """Algorithm 2."""
        net, reply = self.personal(client, payload), {}
        z, y = self._augmented(client, net, payload)
        if "head" in payload:
            alpha = self._alpha(client, net, payload["head"], z, y)
            net.head.vector = mixed(client.state["head"], payload["head"], alpha)  # (8)
            client.state["adapted"] = torch.tensor(client.round - 1)
            client.log(alpha=alpha)
            reply["alpha"] = torch.tensor(alpha, dtype=torch.float64)
        client.train(net.head, epochs=self.head_epochs, on=(z, y))
        lam = self.lam if self.proto_reg else 0
        loss = near_prototypes(client.loss, payload, lam, reduction=self.proto_reduction)  # (14)
        client.train(net.body, epochs=self.base_epochs, loss=loss)
        client.state["head"] = net.head.vector
        if self.head_agg:
            reply["head"] = net.head.vector
        if self.gaussian or self.proto_reg:
            reply |= class_statistics(*client.embed(net), client.classes, squares=self.gaussian and self.cov == "total")
        return {"body": net.body.vector, **reply}

    def _augmented(self, client: Client, net: Net, payload: Payload) -> tuple[Tensor, Tensor]:
        """D̃_i: the features of all local samples under the received body, and drawn ones (15 to 17)."""
        (z, y), rng = client.embed(net), client.rng("gaussian")
        how = {"uniform": self.label_prior == "uniform", "scaled": self.gamma_mode == "share", "clip": self.clip_nonneg}
        return with_drawn_samples(z, y, payload, client.label_counts, self.ratio, rng, **how)

    def _alpha(self, client: Client, net: Net, received: Tensor, z: Tensor, y: Tensor) -> float:
        """The α that minimizes E[CE(α·own + (1−α)·received) + βΔα²·KL(own ‖ received)] on D̃_i (13)."""
        if self.fixed_alpha is not None:
            return self.fixed_alpha
        gap = max(0, client.round - 1 - int(client.state.get("adapted", 0)))  # Δ (11); the paper's first round is 0
        weight, rng = self.beta * min(gap, 2 * self.tau_max), client.rng("alpha")
        return best_head_weight(net, client.state["head"], received, z, y, weight, self.temperature, rng)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        """Algorithm 1."""
        server.average(replies, "body")
        if self.gaussian or self.proto_reg:
            spread = self.cov if self.gaussian else None
            server.state.update(gaussians_of([r.payload for r in replies], server.state, spread))
        if self.head_agg:
            self._aggregate_heads(server, replies)

    def _aggregate_heads(self, server: Server, replies: Sequence[Reply]) -> None:
        """Lines 13 to 27. A head in the state is one that was delivered in this round."""
        state, tau = server.state, int(server.state["tau"])
        if state.pop("head", None) is not None:
            # Rounded, so that equal α have equal means for any number of replies.
            alpha = round(float(torch.stack([r["alpha"] for r in replies]).mean()), 9)  # (9)
            before = float(state["alpha"])
            if self.apa and self.fixed_tau is None:
                tau = min(max(tau - (alpha > before) + (alpha < before), self.tau_min), self.tau_max)  # (10)
            state["tau"], state["alpha"] = torch.tensor(tau), torch.tensor(alpha, dtype=torch.float64)
            server.log(alpha_mean=alpha)
        state["waited"] = state["waited"] + 1
        if state["waited"] >= tau:
            state["head"], state["waited"] = server.mean(replies, "head"), torch.tensor(0)
        server.log(tau=tau)

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(body=payload["body"], head=client.state["head"])
