from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.data.task import CLASSES
from fedtailor.learning import Client, Payload, Reply, Server
from fedtailor.learning.head_mixing import best_logit_weight
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import option


@methods.register("tailor")
@dataclass(frozen=True)
class Tailor(GlobalModel):
    """Learn one model without unlearning what a client lacks, then cut it to each client: its label prior first, a short fit last.

    1. A client trains the global model on CE(f(x) − h·1[n_c = 0], y): the logits of classes that it does not have are held down, so
       there is no need to unlearn them.
    2. The server takes a step with momentum: v ← μ·v + (Σ p_i w_i − w), w ← w + v.
    3. A client's model begins as w_i⁰: w with α·log p_i(c) added to the head's bias, where p_i(c) ∝ n_c + ½ and α ∈ [0, 1] is what its
       training samples are best explained with. Where labels are alike at all clients, α says so.
    4. After the last round it trains w_i⁰ for some epochs; w̄_i is the mean of the ends of the last of them, and its personal model
       w_i⁰ + s·(w̄_i − w_i⁰).

    Label counts do not leave the client. What travels is the model, as in FedAvg, and α as a logged number of the closing step.
    """

    paper = "FedTailor's own; not published elsewhere"
    family = "fine-tuning"
    year = 2026
    keeps = ("personal",)
    tasks = CLASSES
    new_client = "adds its label prior to the global model and fits that for some epochs"

    hold: float = option(3.0, "h: how far the logits of classes that a client lacks are held down", at_least=0.0)
    momentum: float = option(0.85, "μ of the server's steps", at_least=0.0, at_most=0.999)
    prior: bool = option(True, "begin each personal model with the client's label prior")
    close_epochs: int = option(10, "epochs of the closing fit", at_least=0)
    close_lr: float = option(0.01, "its learning rate", above=0.0)
    close_momentum: float = option(0.9, "its momentum", at_least=0.0, at_most=0.999)
    averaged: int = option(5, "epochs whose ends are averaged", at_least=1)
    step: float = option(0.75, "s: how far to go from the global model with prior to the fitted one", at_least=0.0)

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        held = self.hold * as_outputs(client, (client.label_counts == 0).to(client.samples.dtype))
        if held.any():
            client.train(net.all, loss=lambda net, x, y: client.loss(net(x) - held, y))
        else:
            client.train(net.all)
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model", momentum=self.momentum)

    def personal(self, client: Client, payload: Payload) -> Net:
        own = client.state.get("personal")
        return self.with_prior(client, payload)[0] if own is None else client.net(model=own)

    @property
    def closing_steps(self) -> int:
        return 1 if self.close_epochs else 0

    def finish(self, client: Client, payload: Payload) -> None:
        net, alpha = self.with_prior(client, payload)
        client.log(prior_weight=alpha)
        begin = net.all.vector
        client.train(
            net.all,
            epochs=self.close_epochs,
            lr=self.close_lr,
            momentum=self.close_momentum,
            average=self.averaged,
            purpose="close",
        )
        client.state["personal"] = begin + self.step * (net.all.vector - begin)

    def onboard(self, client: Client, payload: Payload) -> None:
        if self.close_epochs:
            self.finish(client, payload)

    def with_prior(self, client: Client, payload: Payload) -> tuple[Net, float]:
        """The global model with as much of the client's label prior in its head's bias as its training samples ask for, and α."""
        net = client.net(model=payload["model"])
        bias = net.head_bias
        if not self.prior or bias is None:
            return net, 0.0
        counts = client.label_counts.to(client.samples.dtype) + 0.5
        prior = (counts / counts.sum()).log()
        x, y = next(client.samples.chunks())
        net.eval()
        with torch.no_grad():
            logits = as_logits(net(x)).cpu().double()
            alpha = best_logit_weight(logits + prior.cpu().double(), logits, y.cpu())
            bias += alpha * as_outputs(client, prior)
        return net, alpha


def as_logits(outputs: Tensor) -> Tensor:
    """Return one logit per class; a binary task's single output is that of class 1."""
    return outputs if outputs.shape[1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], dim=1)


def as_outputs(client: Client, logits: Tensor) -> Tensor:
    """Return what a net would have to put out for one logit per class."""
    return logits[1:] - logits[:1] if client.task.kind == "binary" else logits
