"""Atomic file writing; a full or read-only disk is reported in one sentence."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from fedtailor.errors import FedTailorError


class Unwritable(FedTailorError):
    """A file could not be written: the disk is full or read-only, or permission is missing."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report disk errors while `path` is being written as `Unwritable`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else str(error).rpartition("I/O error: ")[2].partition(" (os ")[0]
        )
        raise Unwritable(f"'{path}' cannot be written: {reason or error}.") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft beside `path`, with the same suffix, that replaces it once complete and flushed to disk."""
    draft = path.with_name(f".draft-{path.name}")
    with writing(path):
        try:
            yield draft
            flush(draft)
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


def replace_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as draft:
        draft.write_bytes(data)


def replace_text(path: Path, text: str) -> None:
    replace_bytes(path, text.encode())


def replace_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read."""
    with replacing(path) as draft:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)


def refuse_readable(path: Path, content: str) -> None:
    """Refuse a file with a secret that others than its owner may read."""
    if path.stat().st_mode & 0o077:
        raise FedTailorError(f"'{path}' holds {content}, but others may read it:  chmod 600 '{path}'")


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist, and check that files can be written into it."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0")


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk before anything is written that relies on it."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
