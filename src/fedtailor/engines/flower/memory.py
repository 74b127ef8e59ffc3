"""A bound on the memory that unpacking received bytes may take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def growing_by(most: int) -> Iterator[None]:
    """Let this process grow by at most this many bytes; beyond, allocation raises MemoryError. Effective on Linux only."""
    if sys.platform != "linux":
        yield
        return
    import resource

    now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = now + most if soft == resource.RLIM_INFINITY else min(soft, now + most)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
