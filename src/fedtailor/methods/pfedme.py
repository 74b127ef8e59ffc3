from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.learning import Client, Payload, Reply, Server, State, mixed
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("pfedme")
@dataclass(frozen=True)
class PFedMe(GlobalModel):
    """Train personal models by proximal steps around the global model, which descends the gradient of the Moreau envelope (Dinh et al.,
    2020).

    Clients send their local copy of the global model; personal models stay with their clients.
    """

    paper = "Dinh et al., Personalized Federated Learning with Moreau Envelopes"
    year = 2020
    family = "regularized"
    sample_dp = "it takes several steps on each batch"
    keeps = ("personal",)
    mean_by = "clients"

    lam: float = option(
        15.0,
        "λ: strength of the pull between the personal and the global model",
        at_least=0.0,
        search=log_between(1, 50),
    )
    inner_steps: int = option(5, "K: steps per batch on the personal model", at_least=1)
    personal_lr: float = option(0.01, "learning rate of the inner steps", above=0.0, search=log_between(0.001, 0.1))
    beta: float = option(
        1.0, "β: step size of the server towards the mean of the clients; 0: it never moves", at_least=0.0
    )
    mu: float = option(0.001, "weight decay of the inner steps", at_least=0.0)

    def init(self, client: Client) -> State:
        return {"personal": client.net().all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])  # θ, the personal model
        local = client.net("local", model=payload["model"])  # w_i, whose gradient is λ(w_i − θ)
        strength = self.lam + self.mu  # λ(θ − w) + μθ is one pull of this strength to w·λ/(λ + μ)
        for x, y, step in client.steps(client.batches(purpose="all"), net.all, local.all):
            centre = local.all.vector * (self.lam / strength if strength else 0.0)
            for _ in range(self.inner_steps):
                if not step(client.loss(net(x), y), net.all, lr=self.personal_lr, pull=(centre, strength)):
                    break
            step(None, local.all, pull=(net.all.vector, self.lam))
        client.state["personal"] = net.all.vector
        client.log(distance=float(net.all.difference(local.all).norm()))
        # θ's running statistics stay, where they travel: w_i itself sees no sample
        net.all.weights = local.all.weights
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        before = server.state["model"]
        server.average(replies, "model", by="clients")
        server.state["model"] = mixed(server.state["model"], before, self.beta)

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net(model=client.state["personal"])
