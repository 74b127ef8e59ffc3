"""Membership inference: tell from a model which samples it was trained on.

A model fits the samples it has seen better than others. The attack thresholds the loss; where models of other clients are at hand, it
first subtracts their mean loss on the same sample, so that hard samples are not taken for strangers (Watson et al., 2022; LiRA in
miniature).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.auditing.finding import Finding
from fedtailor.auditing.labels import fitted_head
from fedtailor.auditing.statistics import auroc, true_positives
from fedtailor.auditing.subject import MOST_SAMPLES, Subject
from fedtailor.auditing.views import View
from fedtailor.data.client_data import Split
from fedtailor.data.task import CLASSES

PERSONAL = "personal model"
HOLDER = "holder of the model"
REFERENCES = 5  # models of other clients that a loss is compared with

Forward = Callable[[Tensor], Tensor]


def personal_membership(subject: Subject) -> Finding | None:
    """Attack the personal models, as anyone who is given one can."""
    if subject.personal is None:
        return None
    models = {client: subject.personal(client).to(subject.protocol.device).eval() for client in subject.clients}
    return _told_apart(subject, models, PERSONAL, HOLDER)


def reply_membership(subject: Subject, view: View, entry: str) -> Finding | None:
    """Attack the weights that each client sends."""
    models: dict[int, Forward] = {}
    for exchange in subject.exchanges:
        seen = subject.seen(view, exchange).reply
        model = _model(subject, exchange.client, entry, seen[entry]) if entry in seen else None
        if model is None:
            return None
        models[exchange.client] = model
    return _told_apart(subject, models, entry, view.who)


def shared_membership(subject: Subject, entry: str) -> Finding | None:
    """Attack the weights that the server sends to the clients."""
    models: dict[int, Forward] = {}
    last: tuple[Tensor | None, Forward | None] = None, None  # most servers send the same to all
    for client in subject.clients:
        vector = subject.method.send(subject.simulation.server, client).get(entry)
        if vector is not None and vector is not last[0]:
            last = vector, _model(subject, client, entry, vector)
        if vector is None or last[1] is None:
            return None
        models[client] = last[1]
    return _told_apart(subject, models, entry, "all clients", calibrated=False)


def _model(subject: Subject, client: int, entry: str, vector: Tensor) -> Forward | None:
    """The model that an entry is, with a head fitted by the attacker if the entry has none; None if it cannot predict."""
    part = subject.load(client, entry, vector)
    if part is None:
        return None
    if part.entries.keys() >= subject.net.all.entries.keys():
        return subject.net.plain().eval()
    if not part.entries.keys() >= subject.net.body.entries.keys() or subject.task.kind not in CLASSES:
        return None
    head = fitted_head(subject)
    embedder = subject.net.plain(head=nn.Identity()).eval()
    return lambda x: head(embedder(x))


def _told_apart(
    subject: Subject, models: Mapping[int, Forward], entry: str, seen_by: str, *, calibrated: bool = True
) -> Finding:
    members: list[np.ndarray] = []
    others: list[np.ndarray] = []
    for place, client in enumerate(models):
        data = subject.federation.clients[client]
        near = [c for c in models if c != client]
        near = (near[place:] + near[:place])[:REFERENCES] if calibrated else []
        for split, scores in ((data.train, members), (subject.strangers(client)[1], others)):
            scores.append(_scores(subject, models, client, near, split))
    positive, negative = np.concatenate(members), np.concatenate(others)
    caught = true_positives(positive, negative)
    details = {"tpr_at_1_percent_fpr": caught.value, "tpr_low": caught.low, "tpr_high": caught.high}
    details |= {"members": len(positive), "others": len(negative)}
    setting = "loss beside others'" if calibrated else "loss"
    return Finding("membership", entry, seen_by, setting, *auroc(positive, negative), chance=0.5, details=details)


def _scores(
    subject: Subject, models: Mapping[int, Forward], client: int, references: list[int], split: Split
) -> np.ndarray:
    """Return how much better the client's model fits each sample than the reference models do."""
    share = max(1, MOST_SAMPLES // len(models))
    chosen = torch.randperm(len(split), generator=subject.rng("membership", client))[:share]
    if not len(chosen):
        return np.empty(0)
    x, y = subject.samples(split.subset(chosen))
    own = losses(subject, models[client], x, y)
    if not references:
        return -own
    return np.mean([losses(subject, models[other], x, y) for other in references], axis=0) - own


@torch.no_grad()
def losses(subject: Subject, model: Forward, x: Tensor, y: Tensor) -> np.ndarray:
    """The loss of each sample."""
    outputs = model(x)
    if subject.task.kind == "binary" and outputs.shape[1] == 2:  # of a head that the attacker fitted
        outputs = outputs[:, 1:] - outputs[:, :1]
    each = torch.vmap(lambda o, label: subject.task.loss(o[None], label[None]))(outputs, _labels(subject, y))
    return each.double().cpu().numpy()


def _labels(subject: Subject, y: Tensor) -> Tensor:
    return y if subject.task.kind in CLASSES else y.to(subject.protocol.torch_dtype)
