"""The server's work in pieces on all cores, with the same numbers on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

ROWS = 250  # of a matrix: what one core multiplies at a time

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def cores() -> int:
    """How many of them this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> list[Result]:
    """What becomes of each piece, in order.

    While the server works its clients' workers wait. A piece is one thread's, however many cores there are: PyTorch's own threads would
    divide sums by their number, and the result would depend on the machine.
    """
    pieces = list(pieces)
    if len(pieces) == 1:
        return [work(pieces[0])]
    before = torch.get_num_threads()
    try:
        # A new thread starts with as many threads of its own as the machine has cores, until it is told otherwise.
        with ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,)) as threads:
            return list(threads.map(work, pieces))
    finally:
        torch.set_num_threads(before)
