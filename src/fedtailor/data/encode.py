"""Learn the description of a pool from its training rows, and turn raw samples into what a net reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedtailor.data.compact import as_type
from fedtailor.data.description import FIRST, PADDING, UNKNOWN, Description
from fedtailor.data.pool import Pool
from fedtailor.errors import FedTailorError, nearest
from fedtailor.limits import check_bytes

PIECE = 4096  # rows of a table encoded at a time


def described(pool: Pool, rows: np.ndarray) -> Description:
    """Describe a pool; scaling, values of categories and the vocabulary are learned from these rows only."""
    columns = tuple(column.fitted(pool.x[rows, i], pool.standardize) for i, column in enumerate(pool.columns))
    tokens = _frequent(pool, rows) if pool.tokens else ()
    return Description(
        shape=(sum(column.width for column in columns),) if columns else tuple(pool.x.shape[1:]),
        classes=pool.classes,
        kind=pool.kind,
        dtype="float32" if columns else str(as_type(pool.x[:0], "the data set").dtype),
        labels=pool.labels,
        label=pool.label,
        mean=tuple(pool.mean),
        std=tuple(pool.std),
        columns=columns,
        tokens=tokens,
        vocabulary=len(tokens) + FIRST if tokens else pool.vocabulary,
        notes=pool.notes,
    )


def encoded_samples(pool: Pool, description: Description) -> np.ndarray:
    """Return what a net reads; a FedTailorError says how the pool does not fit the description."""
    if bool(pool.columns) != bool(description.columns):
        found, wanted = ("a table" if columns else "no table" for columns in (pool.columns, description.columns))
        raise FedTailorError(f"The data is {found}, but its description is that of {wanted}.")
    if pool.columns:
        return _features(pool, description)
    if pool.tokens and description.tokens:
        return _token_ids(pool, description)
    return as_type(pool.x, "the data set")


def relabelled(pool: Pool, description: Description) -> Pool:
    """Return the pool with the classes of the description, matched by name where both have names."""
    if pool.kind != description.kind:
        raise FedTailorError(f"The data is of a {pool.kind} task, but a {description.kind} task was expected.")
    if pool.labels and description.labels and pool.labels != description.labels:
        known = {name: i for i, name in enumerate(description.labels)}
        unknown = [name for name in pool.labels if name not in known]
        if unknown:
            raise FedTailorError(
                f"The data has the label '{unknown[0]}', which is not known.{nearest(unknown[0], description.labels)} "
                f"Known: {', '.join(description.labels[:20])}."
            )
        place = np.array([known[name] for name in pool.labels])
        return replace(pool, y=place[pool.y], classes=description.classes, labels=description.labels)
    if pool.classes > description.classes:
        raise FedTailorError(
            f"The data has labels up to {pool.classes - 1}, but there are {description.classes} classes."
        )
    return replace(pool, classes=description.classes, labels=description.labels)


def _features(pool: Pool, description: Description) -> np.ndarray:
    names = {column.name: i for i, column in enumerate(pool.columns)}
    lacking = [column.name for column in description.columns if column.name not in names]
    if lacking:
        raise FedTailorError(
            f"The table has no column '{lacking[0]}'.{nearest(lacking[0], names)} It has: {', '.join(names)}."
        )
    raw = np.empty((len(pool), len(description.columns)))
    for i, column in enumerate(description.columns):
        given = pool.columns[names[column.name]]
        if given.kind != column.kind:
            raise FedTailorError(f"Column '{column.name}' is a {given.kind}, but a {column.kind} was expected.")
        values = pool.x[:, names[column.name]]
        raw[:, i] = column.recoded(values, given.values) if column.kind == "category" else values
    check_bytes(4 * len(raw) * description.shape[0], "The features of the table")
    pieces = [description.features(piece) for piece in torch.from_numpy(raw).split(PIECE)]
    return torch.cat(pieces).numpy()


def _frequent(pool: Pool, rows: np.ndarray) -> tuple[str, ...]:
    """Return the most frequent tokens of these rows, as many as the limit allows beside the two special ids."""
    counts = np.bincount(pool.x[rows].ravel(), minlength=len(pool.tokens) + FIRST)[FIRST:]
    present = np.flatnonzero(counts)
    ranked = sorted(present, key=lambda i: (-counts[i], pool.tokens[i]))
    return tuple(pool.tokens[i] for i in ranked[: max(0, pool.token_limit - FIRST)])


def _token_ids(pool: Pool, description: Description) -> np.ndarray:
    place = {token: i for i, token in enumerate(description.tokens, start=FIRST)}
    table = np.array([PADDING, UNKNOWN, *(place.get(token, UNKNOWN) for token in pool.tokens)], np.int32)
    ids, length = table[pool.x], description.shape[0]
    if ids.shape[1] < length:
        return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=PADDING)
    return ids[:, :length]
