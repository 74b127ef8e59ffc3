"""Knowledge distillation: a student learns the outputs of its teachers."""

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
    """Return KL(p‖q) of the distributions with these logits, mean over samples; gradients flow to both."""
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    return kl(p, q) + kl(q, p)


def mean_output(logits: Tensor, of: Literal["logits", "probs"] = "logits") -> Tensor:
    """Return logits of the mean of several teachers (teachers × samples × classes): mean logits, or log of mean probabilities."""
    if of == "logits":
        return logits.mean(0)
    return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))


@torch.no_grad()
def outputs_of(net: Net, x: Tensor, *, train_mode: bool = False) -> Tensor:
    """Return the net's logits for x."""
    net.train(train_mode)
    # pieces of equal size, since BatchNorm in train mode cannot take a last piece of one sample
    pieces = x.tensor_split(math.ceil(len(x) / CHUNK))
    return torch.cat([net(piece) for piece in pieces])


@dataclass(frozen=True)
class Lesson:
    """Inputs of the student, and the teachers' logits for them: samples × classes, or teachers × samples × classes."""

    x: Tensor
    logits: Tensor

    def at(self, rows: Tensor) -> Lesson:
        return Lesson(self.x[rows], self.logits[..., rows, :])


def distil(
    participant: Participant,
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
    """Train the student with Adam and a cosine schedule to 0 on the sum over lessons of divergence(teachers, student).

    `lessons(rows)` returns the lessons for these samples of the participant. It is called once for all samples that will be used, or in
    each step if `refresh`. The student taken is that of the step with the best accuracy on the participant's samples ("always"), only if
    it is better than at the start ("val_better"), or that of the last step, without looking at labels ("last").
    """
    samples = participant.samples
    schedule = list(islice(shuffled(len(samples), batch, steps, participant.rng(purpose)), steps))
    if student.has_batchnorm and min(batch, len(samples)) == 1:
        participant.warn("nothing was distilled: BatchNorm cannot train on batches of one sample")
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
        participant.warn(
            f"{len(losses) - len(finite)} of {len(losses)} steps of distillation were left out: not finite"
        )
    mean = sum(finite) / len(finite) if finite else math.nan
    participant.log(**{f"{purpose}_loss": mean, f"{purpose}_accuracy_before": start, f"{purpose}_accuracy_after": best})


def _loss_and_gradient(
    student: Net, lessons: Sequence[Lesson], divergence: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, Tensor | None]:
    """Return loss and gradient; if either is not finite, return NaN and None, and restore the student."""
    before = student.all.vector
    student.train()
    loss = torch.stack([divergence(lesson.logits, student(lesson.x)) for lesson in lessons]).sum()
    gradient = student.all.gradient(loss)
    if not (loss.isfinite() and gradient.isfinite().all()):
        student.all.vector = before
        return math.nan, None
    return loss.item(), gradient
