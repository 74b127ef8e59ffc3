"""Base class and shared functions of partitions, which deal a pool of samples to clients; each partition is one file in `partitions/`.

Most partitions first draw a table of counts (classes × clients) and only then assign rows, so a rejected draw costs no more than
drawing the table again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedtailor.data.pool import Pool
from fedtailor.data.task import CLASSES
from fedtailor.errors import FedTailorError
from fedtailor.registry import Registry, check, option

TRIES = 10_000


@dataclass(frozen=True)
class Deal:
    """The rows of each client's training and test samples; `server` holds the rows given to the server as proxy data."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    server: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    names: tuple[str, ...] = ()  # the clients' names, where the data set knows them


@dataclass(frozen=True)
class Partition(ABC):
    """Base class of partitions. Subclasses are frozen dataclasses; their fields are the options `partition.*`."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    by_class: ClassVar[bool] = True  # whether samples are dealt by their class

    test_share: float = option(0.25, "share of each client's samples kept for testing", at_least=0.0, at_most=0.9)

    def __post_init__(self) -> None:
        check(self, "partition")

    @abstractmethod
    def deal(self, pool: Pool, clients: int, rng: np.random.Generator) -> Deal: ...


partitions: Registry[Partition] = Registry("partition")


def check_task(partition: Partition, pool: Pool) -> None:
    """Refuse a partition that deals by class where samples have no class."""
    if partition.by_class and pool.kind not in CLASSES:
        raise FedTailorError(
            f"The partition '{partition.name}' deals samples by their class, but this is a {pool.kind} task. Take partition=iid, or "
            "natural where the data says who owns a sample."
        )


def check_clients(pool: Pool, clients: int) -> None:
    """Refuse a number of clients that no partition can serve."""
    if clients < 1:
        raise FedTailorError(f"A federation needs at least one client, but clients = {clients}.")
    if clients > len(pool):
        raise FedTailorError(
            f"There are more clients ({clients}) than samples ({len(pool)}). Ask for at most {len(pool)} clients."
        )


def class_sizes(pool: Pool) -> np.ndarray:
    return np.bincount(pool.y, minlength=pool.classes)


def cut(shares: np.ndarray, size: int) -> np.ndarray:
    """Split `size` items by shares, cutting at floor(size · cumulative share), so that the counts add up exactly."""
    edges = np.cumsum(shares)
    edges = np.floor(edges / edges[-1] * size).astype(np.int64)
    return np.diff(edges, prepend=0)


def capped_counts(
    shares: np.ndarray, sizes: np.ndarray, cap: float, beta: float, rng: np.random.Generator
) -> np.ndarray:
    """Cut each class in turn by its Dirichlet shares among the clients that hold fewer than `cap` samples so far.

    Where the open clients' shares are all zero in floating point (tiny beta), they are drawn again among those clients: a Dirichlet
    vector restricted to some of its entries and renormalised is Dirichlet too.
    """
    counts = np.zeros(shares.shape, np.int64)
    held = np.zeros(shares.shape[1], np.int64)
    for k in np.flatnonzero(sizes):
        is_open = held < cap
        kept = np.where(is_open, shares[k], 0.0)
        if not kept.any():
            kept[is_open] = rng.dirichlet(np.full(is_open.sum(), beta))
        counts[k] = cut(kept, sizes[k])
        held += counts[k]
    return counts


def draw_until(minimum: int, draw: Callable[[], np.ndarray], pool: Pool, clients: int) -> np.ndarray:
    """Draw tables of counts until one gives every client at least `minimum` samples, and return it."""
    if minimum * clients > len(pool):
        raise FedTailorError(
            f"{clients} clients with at least {minimum} samples each need {minimum * clients} samples, but the data set has "
            f"{len(pool)}. Lower partition.minimum to at most {len(pool) // clients}, or ask for at most {len(pool) // minimum} clients."
        )
    best = 0
    for _ in range(TRIES):
        counts = draw()
        smallest = int(counts.sum(axis=0).min())
        if smallest >= minimum:
            return counts
        best = max(best, smallest)
    raise FedTailorError(
        f"No draw out of {TRIES} gave each of {clients} clients at least {minimum} of the {len(pool)} samples; the best one left a "
        f"client with {best}. Raise partition.beta, lower partition.minimum to at most {max(best, 1)}, or ask for fewer clients."
    )


def hand_out(rows: np.ndarray, y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle `rows` within each class and hand them out so that client j gets counts[k, j] of class k; `y` labels the whole pool."""
    classes, clients = counts.shape
    order = rng.permutation(rows)
    order = order[np.argsort(y[order], kind="stable")]
    takers = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())
    order = order[np.argsort(takers, kind="stable")]
    return np.split(order, np.cumsum(counts.sum(axis=0))[:-1])


def hold_out(
    parts: list[np.ndarray],
    test_share: float,
    rng: np.random.Generator,
    names: tuple[str, ...] = (),
    pool: Pool | None = None,
) -> Deal:
    """Split each client's rows into training and test rows, with at least one row to train on.

    The user's own split is kept if the pool has one; otherwise the latest samples are held out if their times are known, whole groups
    if samples belong to groups, and random samples (not by class) in all other cases.
    """
    refuse_empty(parts)
    if pool is not None and pool.test is not None and pool.keep_split:
        return kept_split(parts, pool.test, names)
    train, test = [], []
    for part in parts:
        keep = max(1, int((1 - test_share) * len(part) + 1e-9))  # 1e-9: (1 - 0.9) · 10 is 1, not 0.999…
        if pool is not None and pool.time is not None:
            ordered = np.sort(part)[np.argsort(pool.time[np.sort(part)], kind="stable")]
        elif pool is not None and pool.group is not None:
            ordered, keep = _by_group(part, pool.group, keep, rng)
        else:
            ordered = rng.permutation(part)
        train.append(np.sort(ordered[:keep]))  # sorted rows are read in order from a memory-mapped pool
        test.append(np.sort(ordered[keep:]))
    return Deal(train, test, names=names)


def kept_split(parts: list[np.ndarray], is_test: np.ndarray, names: tuple[str, ...] = ()) -> Deal:
    """Split each client's rows as the data set does. A client without test rows is not scored; one without training rows is refused."""
    train, test = [[part[is_test[part] == flag] for part in parts] for flag in (False, True)]
    empty = [j for j, rows in enumerate(train) if not len(rows)]
    if empty:
        first = f"'{names[empty[0]]}'" if names else str(empty[0])
        raise FedTailorError(
            f"{len(empty)} of {len(parts)} clients have no training sample by the data's own split (the first is client {first}). Give "
            "them some, leave these clients out, or have the split drawn anew: partition=natural partition.official=false."
        )
    return Deal(train, test, names=names)


def _by_group(part: np.ndarray, group: np.ndarray, keep: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Shuffle whole groups; return the rows in that order and how many of them train: about `keep`, but at least one group."""
    found, members = np.unique(group[part], return_inverse=True)
    rank = np.empty(len(found), np.int64)
    rank[rng.permutation(len(found))] = np.arange(len(found))
    order = np.argsort(rank[members], kind="stable")
    ends = np.cumsum(np.bincount(rank[members]))
    return part[order], int(ends[np.argmin(np.abs(ends - keep))])


def refuse_empty(parts: list[np.ndarray], advice: str = "ask for a less skewed partition") -> None:
    """Refuse a deal that leaves a client without a sample to train on."""
    empty = [j for j, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise FedTailorError(
            f"{len(empty)} of {len(parts)} clients would get no training sample (the first is client {empty[0]}). Ask for fewer "
            f"clients, or {advice}."
        )
