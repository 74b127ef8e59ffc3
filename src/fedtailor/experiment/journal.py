"""A file that grows by whole lines, and its length and checksum at a checkpoint."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.files import flush, writing

BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Mark:
    """A file's length at some moment, and the checksum of that much of it."""

    bytes: int
    sha256: str


class Journal:
    """A file that lines are appended to. `mark` reads nothing: the checksum is updated with each line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._sum = hashlib.sha256()

    def append(self, text: str) -> None:
        """Append whole lines."""
        data = (text + "\n").encode()
        with writing(self.path), self.path.open("ab") as file:
            file.write(data)
        self._size += len(data)
        self._sum.update(data)

    def mark(self) -> Mark:
        """Return the mark of the file as it is, once all of it is on disk."""
        with writing(self.path):
            flush(self.path)
        return Mark(self._size, self._sum.hexdigest())

    def holds(self, mark: Mark) -> bool:
        """Return whether the file still begins with what it held at a mark."""
        found = _sum(self.path, mark.bytes)
        return found is not None and found.hexdigest() == mark.sha256

    def cut(self, size: int) -> None:
        """Truncate the file to its first `size` bytes."""
        with writing(self.path):
            self.path.touch()
            os.truncate(self.path, size)
        self.reopen()

    def reopen(self) -> None:
        """Continue the file as it is."""
        self._size = self.path.stat().st_size
        self._sum = _sum(self.path, self._size) or hashlib.sha256()


def mark_of(path: Path) -> Mark | None:
    """Return the mark of a whole file; None if there is no such file."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    found = _sum(path, size)
    return Mark(size, found.hexdigest()) if found else None


def read_marks(plain: Any) -> dict[str, Mark]:
    """Read marks by file name from JSON values; raise ValueError if they are not marks."""
    try:
        return {str(name): Mark(int(mark["bytes"]), str(mark["sha256"])) for name, mark in plain.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not marks: {error}") from None


def _sum(path: Path, size: int) -> Any:
    """Return the running checksum of a file's first `size` bytes; None if it is shorter or missing."""
    found, left = hashlib.sha256(), size
    if size == 0:
        return found
    try:
        with path.open("rb") as file:
            while left:
                block = file.read(min(left, BLOCK))
                if not block:
                    return None
                found.update(block)
                left -= len(block)
    except OSError:
        return None
    return found
