"""The first moments of a command: Ctrl-C while PyTorch is being imported, which takes seconds, is answered in one line."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Within this context Ctrl-C ends the process at once: nothing has begun, and an exception would come out of any module."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(number: int, frame: object) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(130)
