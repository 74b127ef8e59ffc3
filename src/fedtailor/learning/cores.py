"""Run the server's work in pieces on all cores, with the same numbers on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

ROWS = 250  # rows of a matrix that one core multiplies at a time

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """Apply `work` to each piece, and return the results in order.

    Use it where the clients' workers are idle. One thread computes a piece, for any number of cores: PyTorch's own threads would split
    sums by their number, and the result would depend on the machine.
    """
    pieces = list(pieces)
    if len(pieces) == 1:
        return [work(pieces[0])]
    # By default, PyTorch would use as many threads as cores within each of these threads.
    pool = ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,))
    with torch_threads(torch.get_num_threads()), pool as threads:
        return list(threads.map(work, pieces))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within this context, PyTorch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
