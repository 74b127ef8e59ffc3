from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning import Client, Loss, Payload, Reply, Server, State
from fedtailor.learning.distill import Lesson, distil, kl, mean_output, outputs_of
from fedtailor.methods.base import GlobalModel, methods
from fedtailor.nets.net import Net
from fedtailor.registry import log_between, option


@methods.register("perada", "PerAda")
@dataclass(frozen=True)
class PerAda(GlobalModel):
    """Pull personal models to a global one, into which the server distils local models' predictions on proxy samples (Xie et al., 2024).

    Clients send a local model, trained from the global one; personal models stay with their clients. Meant for net=resnet18-adapters, of
    which little trains and travels, but any net works. partition=paired gives the server proxy samples. The running statistics of all
    normalisation layers, also those of a frozen backbone, are averaged with the weights.
    """

    paper = "Xie et al., PerAda: Parameter-Efficient Federated Learning Personalization with Generalization Guarantees"
    year = 2024
    family = "distillation"
    sample_dp = True
    home = ("personal",)
    keeps = ("personal",)
    tasks = ("multiclass",)
    eval_point = "after_train"
    bn_buffers = "average"
    mean_by = "clients"

    lam: float = option(
        1.0,
        "λ: weight of the pull λ‖v − w‖² of a personal model to the global one (no ½)",
        at_least=0.0,
        search=log_between(0.1, 10),
    )
    akt: bool = option(True, "AKT: distil the local models into their average, on the server's proxy samples")
    akt_rounds: int = option(30, "number of first rounds with a transfer", at_least=0)
    akt_steps: int = option(500, "steps per transfer", at_least=0)
    akt_batch: int = option(2048, "batch size of a transfer", at_least=1)
    akt_lr: float = option(1e-3, "learning rate of Adam in a transfer, with a cosine schedule to 0", above=0.0)
    akt_refresh: bool = option(
        False,
        "recompute the teachers' outputs in every step, as in the published code, not once per transfer: far slower",
    )
    ensemble: Literal["logits", "probs"] = option(
        "logits", "what is averaged over the local models to form the teacher"
    )
    teacher_mode: Literal["eval", "train"] = option(
        "eval", "train: teachers use dropout and batch statistics, as in the published code"
    )
    kd_accept: Literal["always", "val_better", "last"] = option(
        "always",
        "student that is taken: always that of the best step on the labelled proxy samples; only if val_better than the plain average; or "
        "that of the last step, without looking at labels (for proxy data of another task)",
    )

    @property
    def needs_proxy(self) -> bool:
        return self.akt

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        if self.needs_proxy and not len(server.samples):
            raise FedTailorError(
                f"The method '{self.name}' transfers knowledge on proxy samples at the server, but the server has none. Use "
                "data.server_share=0.1 (in Python: federation.set_aside(0.1)) or partition=paired, which give it a share of the samples "
                "(of few, paired leaves it some with partition.reserve=0), or data.proxy=NAME, which gives it another data set, or do "
                "without: method.akt=false."
            )
        super().start(server, hellos)

    def init(self, client: Client) -> State:
        return {"personal": client.net("personal").all.vector}

    def fit(self, client: Client, payload: Payload) -> Payload:
        w, own = payload["model"], self.personal(client, payload)
        client.train(own.all, loss=self.personal_loss(client, own, w), pull=(w, 2 * self.lam))
        client.state["personal"] = own.all.vector
        local = client.net(model=w)
        client.train(local.all, purpose="global")
        return {"model": local.all.vector}

    @property
    def individually(self) -> tuple[str, ...]:
        return ("model",) if self.akt else ()  # each client's model is a teacher

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model", by="clients")
        if self.akt and server.round <= self.akt_rounds:
            mean = server.state["model"]
            student = server.net("student", model=mean)
            distil(
                server,
                student,
                partial(self.lessons, server, replies, mean),
                self.divergence,
                steps=self.akt_steps,
                batch=self.akt_batch,
                lr=self.akt_lr,
                accept=self.kd_accept,
                purpose="akt",
                refresh=self.akt_refresh,
            )
            server.state["model"] = student.all.vector

    def personal(self, client: Client, payload: Payload) -> Net:
        return client.net("personal", model=client.state["personal"])

    def personal_loss(self, client: Client, own: Net, w: Tensor) -> Loss | None:
        """Return the personal model's loss, to which the pull to the received w is added; None is the task's loss."""
        return None

    def lessons(self, server: Server, replies: Sequence[Reply], mean: Tensor, rows: Tensor) -> list[Lesson]:
        """Return what the student sees of these proxy samples, and the teachers' outputs for it."""
        x = server.samples.take(rows)
        return [Lesson(x, self.taught(server, replies, lambda teacher: x))]

    def taught(self, server: Server, replies: Sequence[Reply], view: Callable[[Net], Tensor]) -> Tensor:
        """Return the joint output of the local models, each for its own view of the samples."""
        teachers = (server.net("teacher", model=reply["model"]) for reply in replies)
        train_mode = self.teacher_mode == "train"
        return self.joined(torch.stack([outputs_of(t, view(t), train_mode=train_mode) for t in teachers]))

    def joined(self, logits: Tensor) -> Tensor:
        return mean_output(logits, self.ensemble)

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        return kl(teacher, student)
