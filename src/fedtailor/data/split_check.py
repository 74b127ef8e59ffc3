"""Samples that do not fit a federation, or cannot be learned from, are refused before anything trains on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedtailor.data.client_data import RemoteSplit, Split, dtype_word, shape_words
from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError

PIECE = 1 << 24  # bytes of samples checked at a time


def check_split(split: Split, where: str, task: Task, dtype: torch.dtype) -> None:
    """Refuse samples that do not fit the federation or cannot be learned from."""
    if tuple(split.x.shape[1:]) != tuple(task.shape) or split.x.dtype != dtype:
        raise FedTailorError(
            f"Samples must be alike everywhere, but {where} has {shape_words(split.x.shape[1:])} {dtype_word(split.x)} "
            f"where the first client has {shape_words(task.shape)} {str(dtype).removeprefix('torch.')}."
        )
    if len(split) == 0 or isinstance(split, RemoteSplit):
        return
    task.check(split.y, where)
    if split.x.is_floating_point():
        bad = sum(int((~piece.isfinite()).flatten(1).any(dim=1).sum()) for piece in _pieces(split))
        if bad:
            raise FedTailorError(
                f"{bad} of {len(split)} samples in {where} hold NaN or infinite values. Mend or drop them."
            )


def _pieces(split: Split) -> Iterator[Tensor]:
    """Yield the samples in pieces of about PIECE bytes, so that a memory-mapped pool larger than memory can be checked."""
    count = max(1, PIECE // max(1, split.x[0].nbytes if len(split.x) else 1))
    for start in range(0, len(split), count):
        yield split.take(torch.arange(start, min(start + count, len(split))))
