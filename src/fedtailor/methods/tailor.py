from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.data.task import CLASSES
from fedtailor.learning import Client, Payload, Reply, Server
from fedtailor.learning.label_prior import add_label_prior, as_outputs, evenness
from fedtailor.learning.scoring import hits
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("tailor")
@dataclass(frozen=True)
class Tailor(GlobalModel):
    """Learn one model without unlearning what a client lacks, then cut it to each client: its label prior first, a short fit last.

    1. A client trains the global model on CE(f(x) − h_i·1[n_c = 0], y): the logits of classes that it does not have are held down, so
       there is no need to unlearn them. h_i = h·H(p_i)/log(classes that it has): nothing is held down at a client of one class, which
       would have nothing left to learn, and all of h where its classes are equally frequent.
    2. The server takes a step with momentum: v ← μ·v + q·(Σ p_i w_i − w), w ← w + v. q is the share of all samples that the replies
       stand for, but at least 1 − μ: with few clients in a round, momentum is a mean over rounds and not a longer step.
    3. A client's model begins as w_i⁰: w with α·log p_i(c) added to the head's bias, where p_i(c) ∝ n_c + ½ and α ∈ [0, 1] is what its
       training samples are best explained with. Where labels are alike at all clients, α says so.
    4. After the last round it trains w_i⁰ for E epochs; w̄_i is the mean of the ends of the later half of them, and its personal model
       w_i⁰ + s_i·(w̄_i − w_i⁰) with s_i = n_i/(n_i + n₀): the fewer samples it has, the less its fit is to be trusted. E is two fifths of
       the epochs of all rounds, but at least 8 and at most 20.
    5. As an option, a client keeps a model that it trains alone if that is better. It leaves out a fifth of its training samples, does 3
       and 4 and trains alone on the rest, and looks which of the two is right on how many held-out samples on which the other is wrong. If
       alone leads by more than one standard deviation of chance, √(a + b) of a to b, it trains alone on all and keeps that.

    Label counts do not leave the client. What travels is the model, as in FedAvg, and α as a logged number of the closing step.
    """

    paper = "FedTailor's own; not published elsewhere"
    family = "fine-tuning"
    sample_dp = "the counts of all labels enter the loss of each sample"
    year = 2026
    keeps = ("personal",)
    tasks = CLASSES
    new_client = "adds its label prior to the global model and fits that for some epochs"

    hold: float = option(4.0, "h: how far the logits of classes that a client lacks are held down", at_least=0.0)
    momentum: float = option(0.85, "μ of the server's steps", at_least=0.0, at_most=0.999)
    prior: bool = option(True, "begin each personal model with the client's label prior")
    close_epochs: int | None = option(None, "E: epochs of the closing fit (none: by the rule above)", at_least=0)
    close_lr: float = option(0.01, "its learning rate", above=0.0, search=log_between(0.002, 0.05))
    close_momentum: float = option(0.9, "its momentum", at_least=0.0, at_most=0.999)
    averaged_epochs: int | None = option(None, "epochs whose ends are averaged (none: the later half)", at_least=1)
    doubt: float = option(
        20.0,
        "n₀: with so many samples a client goes half the way to the fitted model",
        at_least=0.0,
        search=log_between(5, 2000),
    )
    alone: int = option(
        0, "epochs of a model trained alone, which a client keeps if it is better (0: none)", at_least=0
    )

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        absent = (client.label_counts == 0).to(client.samples.dtype)
        held = self.hold * evenness(client.label_counts) * as_outputs(client.task, absent)
        if held.any():
            client.train(net.all, loss=lambda net, x, y: client.loss(net(x) - held, y))
        else:
            client.train(net.all)
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        share = max(server.share(replies), 1 - self.momentum)
        server.average(replies, "model", momentum=self.momentum, share=share)

    def personal(self, client: Client, payload: Payload) -> Net:
        own = client.state.get("personal")
        return self.with_prior(client, payload)[0] if own is None else client.net(model=own)

    @property
    def closing_steps(self) -> int:
        return 0 if self.close_epochs == 0 and not self.alone else 1

    def finish(self, client: Client, payload: Payload) -> None:
        better_alone = self.alone > 0 and self.better_alone(client, payload)
        net = self.trained_alone(client) if better_alone else self.closed(client, payload)
        client.state["personal"] = net.all.vector

    def onboard(self, client: Client, payload: Payload) -> None:
        if self.closing_steps:
            self.finish(client, payload)

    def closed(self, client: Client, payload: Payload, purpose: str = "close") -> Net:
        """The global model with prior, and a step from there to where it is fitted to the client's samples."""
        net, alpha = self.with_prior(client, payload)
        client.log(prior_weight=alpha)
        begin, epochs = net.all.vector, self.close_epochs
        if epochs is None:
            epochs = min(max(2 * client.protocol.rounds * client.protocol.epochs // 5, 8), 20)
        client.train(
            net.all,
            epochs=epochs,
            lr=self.close_lr,
            momentum=self.close_momentum,
            average=self.averaged_epochs or (epochs + 1) // 2,
            purpose=purpose,
        )
        step = len(client.samples) / (len(client.samples) + self.doubt)
        net.all.vector = begin + step * (net.all.vector - begin)
        return net

    def trained_alone(self, client: Client, purpose: str = "alone") -> Net:
        net = client.net()
        client.train(net.all, epochs=self.alone, purpose=purpose)
        return net

    def better_alone(self, client: Client, payload: Payload) -> bool:
        """Whether a model trained alone is better on held-out samples, beyond chance; no if there are too few to hold some out."""
        if len(client.samples) < 5:
            return False
        rest, held = client.split(0.2)
        with client.using(rest):
            cut = hits(self.closed(client, payload, "close on a part"), held)
            alone = hits(self.trained_alone(client, "alone on a part"), held)
        return (alone - cut).sum().item() > (alone != cut).sum().item() ** 0.5

    def with_prior(self, client: Client, payload: Payload) -> tuple[Net, float]:
        """The global model with as much of the client's label prior in its head's bias as its training samples ask for, and α."""
        net = client.net(model=payload["model"])
        return net, add_label_prior(net, client.samples, client.task) if self.prior else 0.0
