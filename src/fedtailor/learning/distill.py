"""Knowledge distillation: a student learns to answer as its teachers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from fedtailor.learning.participants import Participant
from fedtailor.learning.samples import CHUNK, shuffled
from fedtailor.learning.scoring import score
from fedtailor.nets.net import Net

Accept = Literal["always", "val_better", "last"]


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p‖q) of the distributions with these logits, averaged over samples; gradients flow to both."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    return kl(p, q) + kl(q, p)


def mean_answer(logits: Tensor, of: Literal["logits", "probs"] = "logits") -> Tensor:
    """Logits of the mean answer of several teachers (teachers × samples × classes): their mean logits or mean probabilities."""
    if of == "logits":
        return logits.mean(0)
    return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))


@torch.no_grad()
def answers(net: Net, x: Tensor, *, train_mode: bool = False) -> Tensor:
    """The net's logits of x."""
    net.train(train_mode)
    # pieces alike in size, for BatchNorm in train mode cannot take a last piece of one
    pieces = x.tensor_split(math.ceil(len(x) / CHUNK))
    return torch.cat([net(piece) for piece in pieces])


@dataclass(frozen=True)
class Lesson:
    """What the student sees, and what teachers answer to it (their logits: samples × classes, or teachers × samples × classes)."""

    x: Tensor
    answers: Tensor

    def at(self, rows: Tensor) -> Lesson:
        return Lesson(self.x[rows], self.answers[..., rows, :])


def distil(
    party: Participant,
    student: Net,
    lessons: Callable[[Tensor], Sequence[Lesson]],
    divergence: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    batch: int,
    lr: float,
    accept: Accept = "always",
    purpose: str = "distillation",
    refresh: bool = False,
) -> None:
    """Adam, its rate falling to 0 by a cosine, on the sum over lessons of divergence(teachers, student).

    `lessons(rows)` gives the lessons of these samples of the party's: asked for once, for all that will be seen, or in each step if
    `refresh`. The students after each step are compared by accuracy on the party's samples: the best is taken ("always"), but only if
    it beats the one at the start ("val_better"), or the last is taken without looking at labels ("last").
    """
    samples = party.samples
    schedule = list(islice(shuffled(len(samples), batch, steps, party.rng(purpose)), steps))
    if student.has_batchnorm and min(batch, len(samples)) == 1:
        party.warn("nothing was distilled: BatchNorm has no statistics of a batch of one")
        schedule = []
    if not schedule:
        return
    seen = torch.cat(schedule).unique()
    once = [] if refresh else lessons(seen)
    weights = student.all._trainable.joined  # the memory itself, which Adam writes into
    adam = torch.optim.Adam([weights], lr=lr)
    judged = accept != "last"
    start = score(student, samples).accuracy if judged else math.nan
    best, chosen, losses = (start if accept == "val_better" else -1.0), student.all.vector, []
    for k, rows in enumerate(schedule):
        now = lessons(rows) if refresh else [lesson.at(torch.searchsorted(seen, rows)) for lesson in once]
        adam.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * k / steps)) / 2
        loss, weights.grad = _loss_and_gradient(student, now, divergence)
        if weights.grad is not None:
            adam.step()
        losses.append(loss)
        accuracy = score(student, samples).accuracy if judged else math.nan
        if not judged or accuracy > best:
            best, chosen = accuracy, student.all.vector
    weights.grad, student.all.vector = None, chosen
    finite = [value for value in losses if math.isfinite(value)]
    if len(finite) < len(losses):
        party.warn(f"{len(losses) - len(finite)} of {len(losses)} steps of distillation were left out: not finite")
    mean = sum(finite) / len(finite) if finite else math.nan
    party.log(**{f"{purpose}_loss": mean, f"{purpose}_accuracy_before": start, f"{purpose}_accuracy_after": best})


def _loss_and_gradient(
    student: Net, lessons: Sequence[Lesson], divergence: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, Tensor | None]:
    """Return NaN and no gradient where either is not finite, with the student as it was."""
    before = student.all.vector
    student.train()
    loss = torch.stack([divergence(lesson.answers, student(lesson.x)) for lesson in lessons]).sum()
    gradient = student.all.gradient(loss)
    if not (loss.isfinite() and gradient.isfinite().all()):
        student.all.vector = before
        return math.nan, None
    return loss.item(), gradient
