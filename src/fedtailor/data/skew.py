"""How much the clients of a federation differ: in their labels, their sizes, and their features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedtailor.data.federation import Federation

MOST_SAMPLES = 200  # of a client that its features are compared by
MOST_FEATURES = 256
DRAWS = 20  # of clients of the same sizes by chance


@dataclass(frozen=True)
class Skew:
    """Differences between clients, each 0 if there are none beyond chance and at most 1.

    `labels` is the mean distance (total variation) of a client's label shares from those of all, less what clients of the same sizes
    dealt at random would have; of a regression, the share of the targets' variance that lies between clients. `features` is the share of
    the features' variance within a class that lies between clients. `sizes` is Gini's coefficient of the clients' numbers of samples.
    """

    clients: int
    samples: int
    labels: float
    sizes: float
    features: float

    def sentences(self) -> list[str]:
        """Say it in words."""
        return [
            f"{self.clients} clients with {self.samples:,} training samples; their sizes differ {_word(self.sizes, 0.15, 0.4)} "
            f"(Gini {self.sizes:.2f}).",
            f"Their labels differ {_word(self.labels, 0.1, 0.35)} ({self.labels:.2f} of 1 beyond chance).",
            f"Samples of the same label differ {_word(self.features, 0.03, 0.12)} between clients ({self.features:.2f} of 1 beyond "
            "chance).",
        ]


def skew_of(federation: Federation, seed: int = 0) -> Skew:
    """Compare the clients by their training samples; test samples are not looked at."""
    sizes = np.array([len(client.train) for client in federation.clients])
    rng = np.random.default_rng(seed)
    x, y, who = _samples(federation, rng)
    if federation.task.kind in ("multiclass", "binary"):
        labels, groups = _label_distance(federation.label_counts, rng), y
    else:
        targets = np.stack([v.reshape(-1).astype(float) for v in y]) if y.ndim > 1 else y.astype(float)[:, None]
        labels, groups = _between(targets, np.zeros(len(who), int), who), np.zeros(len(who), int)
    return Skew(len(sizes), int(sizes.sum()), labels, _gini(sizes), _between(x, groups, who))


def _samples(federation: Federation, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return some samples of each client as rows of numbers, with their labels and whose they are."""
    rows, labels, who = [], [], []
    for number, client in enumerate(federation.clients):
        count = len(client.train)
        chosen = torch.from_numpy(rng.permutation(count)[:MOST_SAMPLES])
        rows.append(client.train.take(chosen).reshape(len(chosen), -1).double().numpy())
        labels.append(client.train.y[chosen].numpy())
        who.append(np.full(len(chosen), number))
    x = np.concatenate(rows)
    if x.shape[1] > MOST_FEATURES:
        x = x[:, np.sort(rng.choice(x.shape[1], MOST_FEATURES, replace=False))]
    return x, np.concatenate(labels), np.concatenate(who)


def _label_distance(counts: np.ndarray, rng: np.random.Generator) -> float:
    counts = counts[counts.sum(axis=1) > 0]
    shares = counts.sum(axis=0) / counts.sum()

    def distance(of: np.ndarray) -> float:
        return float(np.abs(of / of.sum(axis=1, keepdims=True) - shares).sum(axis=1).mean() / 2)

    dealt = [np.stack([rng.multinomial(n, shares) for n in counts.sum(axis=1)]) for _ in range(DRAWS)]
    chance = sum(map(distance, dealt)) / DRAWS
    return min(1.0, max(0.0, (distance(counts) - chance) / max(1e-9, 1 - chance)))


def _between(x: np.ndarray, groups: np.ndarray, who: np.ndarray) -> float:
    """Return ω² of the clients within groups, the mean over columns: how much variance lies between them beyond chance."""
    between, within = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    free_between = free_within = 0
    for group in np.unique(groups):
        part, owner = x[groups == group], who[groups == group]
        owners = np.unique(owner)
        if len(owners) < 2 or len(part) <= len(owners):
            continue
        centre = part.mean(axis=0)
        for client in owners:
            own = part[owner == client]
            between += len(own) * (own.mean(axis=0) - centre) ** 2
            within += ((own - own.mean(axis=0)) ** 2).sum(axis=0)
        free_between += len(owners) - 1
        free_within += len(part) - len(owners)
    if not free_within:
        return 0.0
    noise = within / free_within
    total = between + within + noise
    varying = total > 0
    omega = (between - free_between * noise)[varying] / total[varying]
    return float(np.clip(omega, 0, 1).mean()) if len(omega) else 0.0


def _gini(sizes: np.ndarray) -> float:
    ordered = np.sort(sizes).astype(float)
    n, total = len(ordered), ordered.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * total)) if total else 0.0


def _word(value: float, mild: float, strong: float) -> str:
    return "hardly" if value < mild else "somewhat" if value < strong else "much"
