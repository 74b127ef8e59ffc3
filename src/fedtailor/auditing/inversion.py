"""Gradient inversion: reconstruct training samples from the change of the weights that a client sends.

Each victim takes one step on a small batch, the case that is easiest to attack. If the first layer is linear with a bias, the samples
stand in its change: a neuron that only one sample activates has Δw = δ·x and Δb = δ, so x = Δw/Δb (Phong et al., 2018). Otherwise
samples are sought whose gradient points in the direction of the change (Geiping et al., 2020), for a bounded number of steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.auditing.finding import Finding
from fedtailor.auditing.statistics import resampled
from fedtailor.auditing.subject import Subject
from fedtailor.auditing.views import View
from fedtailor.nets.net import Part
from fedtailor.randomness import numpy_stream

ROUND = 0  # in place of a batch size: a whole round, as the run trains
BATCHES = (1, 4, ROUND)
VICTIMS = 12  # samples that are attacked per batch size where they can be read off
SEARCHES = 4  # batches at most that are attacked where samples have to be sought, which is slow
FEWEST = 2  # batches that are attacked, however short the time
STEPS = 300
STEP = 0.1
SMOOTH = 1e-3  # weight of the total variation of images
TINY = 1e-6  # of the largest Δb: a smaller one is rounding


@dataclass(frozen=True)
class Reconstruction:
    """A true sample, its reconstruction, and their correlation; both as the net reads them."""

    entry: str
    setting: str
    true: np.ndarray
    found: np.ndarray
    correlation: float


@dataclass
class Attacked:
    """The victims of one attack: per batch, the true samples, what was reconstructed, and guesses from other samples."""

    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    guesses: list[float] = field(default_factory=list)


def gradient_inversion(
    subject: Subject, view: View, entry: str, batch: int, until: float = math.inf
) -> tuple[Finding, list[Reconstruction]] | None:
    """Attack one step on a batch of so many samples at several clients, or their whole round.

    Return None if the entry is not weights that read samples, and for a whole round if samples have to be sought. After the time `until`
    (of time.monotonic) no further client is attacked, if there were two.
    """
    if subject.federation.vocabulary:
        return None  # whole numbers cannot be sought by gradients
    first = first_layer(subject)
    if batch == ROUND and not first:
        return None
    attacked = Attacked()
    for client, rows in _victims(subject, batch):
        tried = len(attacked.pairs)
        if (tried >= FEWEST and time.monotonic() > until) or (tried >= SEARCHES and not first):
            break
        one_step = {"epochs": 1, "steps": 1, "batch": batch}
        exchange = subject.exchange(client, rows, **one_step) if batch else subject.exchange(client)
        seen = subject.seen(view, exchange)
        part = subject.load(client, entry, seen.known[entry]) if entry in seen.reply and entry in seen.known else None
        if part is None or not part.entries.keys() & (subject.net.body.entries.keys() | set(first or ())):
            return None
        x, y = subject.samples(subject.federation.clients[client].train.subset(torch.tensor(rows)))
        change = seen.reply[entry] - seen.known[entry]
        found = _from_first_layer(part, first, change, batch) if first else None
        if found is None:
            found = _by_search(subject, part, change, x.shape, y, subject.rng("search", client))
        _score(attacked, subject, x.flatten(1), found.reshape(len(found), -1))
    setting = f"one step on {batch}" if batch else "a whole round"
    rng = numpy_stream(subject.seed, "audit", "inversion", entry, batch)
    score = resampled(attacked.scores, lambda rows: float(rows.mean()), rng)
    psnr = float(np.mean([_psnr(x, found) for x, found in attacked.pairs]))
    chance = float(np.mean(attacked.guesses))
    details = {"victims": float(sum(map(len, attacked.scores))), "psnr": psnr}
    finding = Finding("inversion", entry, view.who, setting, *score, chance=chance, details=details)
    return finding, _best(attacked, entry, setting, subject.task.shape)


def first_layer(subject: Subject) -> tuple[str, str] | None:
    """Return the names of weight and bias of the first layer if it is linear and reads the sample itself."""
    x = subject.auxiliary[0][:2]
    hits: list[nn.Module] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        if inputs[0].shape == x.flatten(1).shape and torch.equal(inputs[0], x.flatten(1)):
            hits.append(layer)

    net = subject.net.eval()
    hooks = [m.register_forward_hook(note) for m in net.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    if not hits or getattr(hits[0], "bias", None) is None:
        return None
    names = {id(tensor): name for name, tensor in net.all.entries.items()}
    weight, bias = names.get(id(hits[0].weight)), names.get(id(hits[0].bias))
    return (weight, bias) if weight and bias else None


def _victims(subject: Subject, batch: int) -> list[tuple[int, list[int]]]:
    """Return rows of clients, one batch per client in turn; of a whole round, some of the rows that it trained on."""
    order = subject.clients
    drawn = []
    size = batch or VICTIMS
    for turn in range(max(FEWEST, VICTIMS // size)):
        client = order[turn % len(order)]
        n = len(subject.federation.clients[client].train)
        rows = torch.randperm(n, generator=subject.rng("victims", batch, turn))[:size]
        drawn.append((client, sorted(rows.tolist())))
    return drawn


def _from_first_layer(part: Part, first: tuple[str, str], change: Tensor, batch: int) -> Tensor | None:
    """Return the candidate Δw/Δb of each neuron, or only of the one that moved most if the batch is a single sample."""
    named = part.named(change)
    if not named.keys() >= set(first):
        return None
    weight, bias = (named[name].double() for name in first)
    size = bias.abs()
    if batch == 1:
        size = torch.where(size == size.max(), size, 0)
    moved = size > TINY * size.max()
    return weight[moved] / bias[moved, None] if moved.any() else torch.zeros(1, weight.shape[1], dtype=weight.dtype)


def _by_search(
    subject: Subject, part: Part, change: Tensor, shape: Sequence[int], y: Tensor, rng: torch.Generator
) -> Tensor:
    """Seek samples whose gradient points along −Δ.

    The labels are taken as known: whoever sees a head can read them off. If the head stays at the client, the gradient that it
    passes back to the features is sought as well.
    """
    net = subject.net.train()
    has_head = part.entries.keys() >= net.head.entries.keys()
    x = torch.randn(*shape, generator=rng).to(net.flat).requires_grad_()
    with torch.no_grad():
        width = net.features(x).shape[1]
    signal = torch.randn(len(x), width, generator=rng).to(net.flat).requires_grad_()
    sought = [x] if has_head else [x, signal]
    wanted = -part.trainable(change)
    optimizer = torch.optim.Adam(sought, lr=STEP)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss = subject.task.loss(net(x), y) if has_head else (net.features(x) * signal).sum()
        found = torch.autograd.grad(loss, part.parameters, create_graph=True, allow_unused=True)
        gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(part.parameters, found, strict=True)]
        gradient = torch.cat([g.reshape(-1) for g in gradients])
        miss = 1 - F.cosine_similarity(gradient, wanted, dim=0) + SMOOTH * _variation(x)
        x.grad, signal.grad = None, None
        for tensor, grad in zip(sought, torch.autograd.grad(miss, sought), strict=True):
            tensor.grad = grad.sign() if tensor is x else grad
        optimizer.step()
        schedule.step()
    return x.detach()


def _variation(x: Tensor) -> Tensor:
    if x.ndim != 4:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def _score(attacked: Attacked, subject: Subject, true: Tensor, found: Tensor) -> None:
    """Correlate each true sample with the reconstruction nearest to it, and with the nearest of as many samples of others."""
    others = subject.auxiliary[0].flatten(1)
    guessed = others[torch.randperm(len(others), generator=subject.rng("guess", len(attacked.pairs)))[: len(found)]]
    best = correlations(true, found)
    chosen = best.max(1).indices
    attacked.pairs.append((true, found[chosen].to(true)))
    attacked.scores.append(best.max(1).values.numpy())
    attacked.guesses += correlations(true, guessed).max(1).values.tolist()


def correlations(true: Tensor, found: Tensor) -> Tensor:
    """Pearson correlations of the rows of two matrices; zero for a constant row."""
    rows = []
    for matrix in (true.double(), found.double()):
        centred = matrix - matrix.mean(1, keepdim=True)
        rows.append(centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12))
    return rows[0] @ rows[1].T


def _psnr(true: Tensor, found: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, by the range of the true samples; at most 100."""
    wide = float(true.max() - true.min())
    error = float((true.double() - found.double()).square().mean())
    return float(min(100.0, 10 * np.log10(max(wide**2, 1e-12) / max(error, 1e-12))))


def _best(attacked: Attacked, entry: str, setting: str, shape: tuple[int, ...], most: int = 4) -> list[Reconstruction]:
    """The samples that were reconstructed best."""
    pairs = [(x, z) for xs, zs in attacked.pairs for x, z in zip(xs, zs, strict=True)]
    scores = np.concatenate(attacked.scores)
    chosen = [(*pairs[i], float(scores[i])) for i in np.argsort(-scores)[:most]]
    return [Reconstruction(entry, setting, _array(x, shape), _array(z, shape), score) for x, z, score in chosen]


def _array(row: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return row.reshape(shape).cpu().double().numpy()
