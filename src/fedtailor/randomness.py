"""Randomness named by its purpose, never by a global generator's position.

Every random choice draws from a stream derived from (seed, *keys), for example (seed, "batches", round, client). So a run gives the
same numbers whatever the engine, the order in which clients are served, or where it was interrupted and resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Key = int | str


def derive(seed: int, *keys: Key) -> int:
    """Derive a 63-bit seed for the stream named by `keys`."""
    digest = hashlib.blake2b(repr((seed, *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_stream(seed: int, *keys: Key) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *keys))


def numpy_stream(seed: int, *keys: Key) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *keys))


def global_state() -> list[torch.Tensor]:
    """Where torch's global generators are, that of the CPU first."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]


def set_global_state(state: list[torch.Tensor]) -> None:
    """Put torch's global generators back to where they were."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


@contextmanager
def seeded(seed: int, *keys: Key) -> Iterator[None]:
    """Seed torch's global generator (initial weights, dropout) from a named stream, and restore it afterwards."""
    # Not torch.manual_seed: without CUDA, each call stores a traceback, half a millisecond and a leak.
    number, before = derive(seed, *keys), global_state()
    torch.default_generator.manual_seed(number)
    if len(before) > 1:
        torch.cuda.manual_seed_all(number)
    try:
        yield
    finally:
        set_global_state(before)
