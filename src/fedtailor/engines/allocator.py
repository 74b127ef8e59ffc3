"""The C library's memory allocator, set up for training."""

from __future__ import annotations

import ctypes


def keep_freed_memory() -> None:
    """Keep the memory that one training step frees for the next; fetching pages anew costs a tenth of a step.

    Call once where a process that trains starts. Only glibc needs and knows this; it then keeps at most half a gigabyte.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(-3, 32 * 1024**2)  # M_MMAP_THRESHOLD: smaller blocks come from the heap
    mallopt(-1, 512 * 1024**2)  # M_TRIM_THRESHOLD: free memory at the heap's end beyond this is returned
