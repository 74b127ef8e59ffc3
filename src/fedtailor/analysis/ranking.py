"""Ranks of methods over federations and seeds: how sure they are, and which differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.analysis.results import Result
from fedtailor.experiment.headline import Headline

RESAMPLES = 2000
FEW = 3  # methods and blocks (a federation with a seed) that a ranking needs at least

Blocks = Mapping[tuple[str, int], Mapping[str, np.ndarray]]  # (federation, seed) -> method -> value of each client


@dataclass(frozen=True)
class Ranking:
    """The mean rank of each method over blocks, the best first, with a 95 % bootstrap interval over blocks and clients.

    `difference` is Nemenyi's critical difference at 5 %: mean ranks that are nearer may differ by chance. Seeds of one federation share
    its pool of samples, so blocks are not quite independent, and the difference is rather too small than too large.
    """

    names: Sequence[str]
    ranks: np.ndarray
    low: np.ndarray
    high: np.ndarray
    blocks: int
    difference: float

    @property
    def alike(self) -> list[tuple[int, int]]:
        """The longest stretches, first and last place, of methods that may differ by chance."""
        ends = [int(np.searchsorted(self.ranks, rank + self.difference, side="right")) - 1 for rank in self.ranks]
        return [(k, end) for k, end in enumerate(ends) if end > k and (k == 0 or ends[k - 1] < end)]


def ranking(blocks: Blocks, *, lower_is_better: bool = False, seed: int = 0) -> Ranking | None:
    """Rank the methods that all blocks have by their mean over clients; None if methods or blocks are too few."""
    from scipy import stats  # slow to import

    methods = sorted(set.intersection(*(set(block) for block in blocks.values()))) if blocks else []
    if len(methods) < FEW or len(blocks) < FEW:
        return None
    sign = 1.0 if lower_is_better else -1.0
    values = [sign * np.stack([block[name] for name in methods]) for block in blocks.values()]

    def mean_ranks(means: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        """Return the mean ranks in each list of blocks, given the mean of each method over a block's clients."""
        return np.asarray(stats.rankdata(means, axis=-1).mean(axis=-2))

    (ranks,) = mean_ranks([[np.nanmean(v, axis=1) for v in values]])
    rng = np.random.default_rng(seed)
    resampled = mean_ranks(  # ranked all at once: one call each would take seconds
        [
            [np.nanmean(v[:, rng.integers(v.shape[1], size=v.shape[1])], axis=1) for v in (values[b] for b in chosen)]
            for chosen in rng.integers(len(values), size=(RESAMPLES, len(values)))
        ]
    )
    low, high = np.percentile(resampled, (2.5, 97.5), axis=0)
    order = np.argsort(ranks, kind="stable")
    k, n = len(methods), len(values)
    difference = stats.studentized_range.ppf(0.95, k, np.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    return Ranking([methods[i] for i in order], ranks[order], low[order], high[order], n, float(difference))


def blocks_of(federations: Mapping[str, Sequence[Result]], metric: Headline) -> Blocks:
    """Return the clients' values of finished runs by federation and seed; clients without a value in some method are left out."""
    found: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    for title, runs in federations.items():
        for run in runs:
            values = run.clients(metric)
            if run.finished and np.isfinite(values).any():
                found.setdefault((title, run.seed), {})[run.method] = values
    return {key: _paired(block) for key, block in found.items() if len({len(v) for v in block.values()}) == 1}


def _paired(block: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    known = np.isfinite(np.stack(list(block.values()))).all(axis=0)
    return {name: values[known] for name, values in block.items()}
