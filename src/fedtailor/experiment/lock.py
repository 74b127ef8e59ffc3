"""One process at a time writes into a run folder."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtailor.errors import FedTailorError
from fedtailor.files import writing

log = logging.getLogger("fedtailor")

LOCK = ".lock"
MOMENT = 0.06  # seconds: whoever only looks whether a folder is locked holds its lock for a moment

_held: set[int] = set()  # open lock files of this process


@contextmanager
def locked(folder: Path, name: Path | None = None, *, patience: float = MOMENT) -> Iterator[None]:
    """Lock a folder within this context; raise FedTailorError, with the folder's `name`, if another process holds it.

    Waits for it up to `patience` seconds.

    The lock ends with the process, however that ends, so none is ever stale. It follows the folder when that is renamed.
    """
    if sys.platform == "win32":
        yield  # no such lock there: two processes that resume one folder go unnoticed
        return
    file = folder / LOCK
    with writing(file):
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(handle)
    try:
        if not _taken(handle, folder, patience) or not _is_at(handle, file):
            holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            raise FedTailorError(
                f"The run in '{name or folder}' is being carried out by {holder}. Wait for it, or stop it."
            )
        with writing(file):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        if handle in _held:
            _held.discard(handle)
            os.close(handle)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the folder's lock; True where that cannot be found out."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _taken(handle: int, folder: Path, patience: float) -> bool:
    import fcntl

    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
            continue
        except OSError as error:  # some network file systems
            log.warning(
                "'%s' cannot be locked (%s): see to it that no other process resumes it.", folder, error.strerror
            )
        return True


def _is_at(handle: int, file: Path) -> bool:
    """Return whether the lock file is still in place, not that of a folder that was moved or removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """Release the locks in a forked worker: they belong to its parent and must end with it."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
