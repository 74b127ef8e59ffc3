"""Label inference: tell from what a client sends which classes it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

from fedtailor.auditing.finding import Finding
from fedtailor.auditing.statistics import area, auroc, resampled
from fedtailor.auditing.subject import Subject
from fedtailor.auditing.views import Exchange, View
from fedtailor.learning.convex_head import convex_head
from fedtailor.nets.net import Part
from fedtailor.randomness import numpy_stream

STRENGTH = 1e-2  # of the pull that keeps the attacker's head finite

Attack = Callable[[Exchange], Tensor]  # a score per class from what is seen of one client


def label_inference(subject: Subject, view: View, entry: str) -> Finding | None:
    """Attack one entry of every client; return None if no attack on labels is known for it."""
    found = [seen for exchange in subject.exchanges if entry in (seen := subject.seen(view, exchange)).reply]
    attack = _attack(subject, entry, found[0].reply[entry]) if found else None
    if attack is None:
        return None
    target, setting = _target(subject)
    groups = []
    for seen in found:
        scores = attack(seen).double().cpu().numpy()
        scores = scores / max(float(np.abs(scores).sum()), 1e-30)  # shares: clients with more samples move further
        groups.append(np.stack([scores, target[seen.client]], axis=1))
    rows = np.concatenate(groups)
    rng = numpy_stream(subject.seed, "audit", "labels", entry, view.who)
    score = auroc(*_sides(rows)).widened(resampled(groups, _area, rng))
    return Finding("labels", entry, view.who, setting, *score, chance=0.5, details={"clients": len(groups)})


def _sides(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rows[rows[:, 1] > 0, 0], rows[rows[:, 1] == 0, 0]


def _area(rows: np.ndarray) -> float:
    positive, negative = _sides(rows)
    return area(positive, negative) if len(positive) and len(negative) else np.nan


def _target(subject: Subject) -> tuple[np.ndarray, str]:
    """Return what is to be inferred, clients × classes: who has the class or, if all have all classes, who has more of it than others."""
    counts = subject.federation.label_counts
    if (counts[subject.clients] == 0).any():
        return counts > 0, "which classes it has"
    shares = counts / counts.sum(1, keepdims=True)
    return shares > counts.sum(0) / counts.sum(), "which classes it has more of"


def _attack(subject: Subject, entry: str, value: Tensor) -> Attack | None:
    part = subject.part(entry, value)
    if part is None:
        by_class = value.ndim > 0 and len(value) == subject.task.classes
        return (lambda seen: _rows(seen.reply[entry])) if by_class else None
    bias = subject.net.head_bias
    name = next((name for name, tensor in part.entries.items() if tensor is bias), None)
    if name is not None:
        return lambda seen: _head_moved(subject, part, name, seen.reply[entry] - seen.known[entry])
    if part.entries.keys() & subject.net.body.entries.keys():
        known = ClassGradients(subject, entry)
        return lambda seen: _gradient_shares(known, part, seen)
    return None


def _rows(value: Tensor) -> Tensor:
    """Return one score per class: counts as they are, or the norms of class means, which are zero for a class the client does not have."""
    return value.double() if value.ndim == 1 else value.double().flatten(1).norm(dim=1)


def _head_moved(subject: Subject, part: Part, bias: str, change: Tensor) -> Tensor:
    """Return the change of the head's bias: it follows −Σ(p − y), so it rises for the classes that the client has."""
    moved = part.named(change)[bias]
    return torch.cat([-moved, moved]) if subject.task.kind == "binary" else moved


def _gradient_shares(known: ClassGradients, part: Part, seen: Exchange) -> Tensor:
    """The mix of per-class gradients that explains the change of a body best: Δ ≈ −Σ n_c·g_c with n_c ≥ 0."""
    before = seen.known[known.entry]
    q, r = known.at(seen.client, before)
    change = part.trainable(seen.reply[known.entry] - before).double().cpu().numpy()
    mixed, _ = nnls(r, -q.T @ change)
    return torch.from_numpy(mixed)


class ClassGradients:
    """The gradient of each class's mean loss at given weights, as the factors Q·R of a matrix with a column per class.

    They are those of the attacker's samples, with a head that the attacker fits to them, and remembered: most servers send the same
    weights to all clients.
    """

    def __init__(self, subject: Subject, entry: str) -> None:
        self.subject = subject
        self.entry = entry
        self._last: tuple[Tensor | None, Any] = None, None

    def at(self, client: int, weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
        if self._last[0] is not weights:
            part = self.subject.load(client, self.entry, weights)
            assert part is not None
            columns = class_gradients(self.subject, part).double().cpu().numpy().T
            self._last = weights, np.linalg.qr(columns)
        q, r = self._last[1]
        return q, r


def class_gradients(subject: Subject, part: Part) -> Tensor:
    """The gradient of each class's mean loss with respect to a part, on the attacker's samples; zero where it has none of the class."""
    net, (x, y) = subject.net.eval(), subject.auxiliary
    head = fitted_head(subject)
    rows = []
    for c in range(subject.task.classes):
        own = y == c
        if not own.any():
            rows.append(torch.zeros_like(part.trainable(part.vector)))
            continue
        rows.append(part.gradient(F.cross_entropy(head(net.features(x[own])), y[own])).detach())
    return torch.stack(rows)


def fitted_head(subject: Subject) -> Callable[[Tensor], Tensor]:
    """A linear head with an output per class, fitted to the attacker's samples on the features of the net as it is."""
    net, (x, y) = subject.net.eval(), subject.auxiliary
    with torch.no_grad():
        z = net.features(x)
    none = torch.zeros(subject.task.classes * (z.shape[1] + 1), dtype=z.dtype)
    vector, _ = convex_head(z, y, none, [STRENGTH])
    weight, bias = vector[: -subject.task.classes].view(subject.task.classes, -1), vector[-subject.task.classes :]
    return lambda features: F.linear(features, weight, bias)
