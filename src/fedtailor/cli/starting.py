"""Startup of a command: Ctrl-C while PyTorch is being imported, which takes seconds, ends it with one line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """End the process at once on Ctrl-C: nothing has begun, and an exception could surface in any module."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return
    before = signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(number: int, frame: object) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(130)
