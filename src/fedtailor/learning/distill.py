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


class Adam:
    """Adam on one vector (Kingma and Ba, 2015)."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.steps = 0

    def step(self, gradient: Tensor, lr: float) -> None:
        self.steps += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (self.square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
        self.weights.addcdiv_(self.mean, scale, value=-lr / (1 - 0.9**self.steps))


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
    adam = Adam(student.all._trainable)
    judged = accept != "last"
    start = score(student, samples).accuracy if judged else math.nan
    best, chosen, losses = (start if accept == "val_better" else -1.0), student.all.vector, []
    for k, rows in enumerate(schedule):
        now = lessons(rows) if refresh else [lesson.at(torch.searchsorted(seen, rows)) for lesson in once]
        rate = lr * (1 + math.cos(math.pi * k / steps)) / 2
        losses.append(_step(student, adam, rate, now, divergence))
        accuracy = score(student, samples).accuracy if judged else math.nan
        if not judged or accuracy > best:
            best, chosen = accuracy, student.all.vector
    student.all.vector = chosen
    finite = [value for value in losses if math.isfinite(value)]
    if len(finite) < len(losses):
        party.warn(f"{len(losses) - len(finite)} of {len(losses)} steps of distillation were left out: not finite")
    mean = sum(finite) / len(finite) if finite else math.nan
    party.log(**{f"{purpose}_loss": mean, f"{purpose}_accuracy_before": start, f"{purpose}_accuracy_after": best})


def _step(
    student: Net,
    adam: Adam,
    rate: float,
    lessons: Sequence[Lesson],
    divergence: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """One step and its loss; a loss or gradient that is not finite leaves the student as it was."""
    before = student.all.vector
    student.train()
    loss = torch.stack([divergence(lesson.answers, student(lesson.x)) for lesson in lessons]).sum()
    gradient = student.all.gradient(loss)
    if not (loss.isfinite() and gradient.isfinite().all()):
        student.all.vector = before
        return math.nan
    adam.step(gradient, rate)
    return loss.item()
