"""A run folder is made under another name and moved into place when complete, so that there is never half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedtailor.errors import FedTailorError
from fedtailor.experiment.lock import LOCK, locked
from fedtailor.files import Unwritable, flush, make_folder, writing

DRAFT = ".draft"
OLD_DRAFT = "config.toml.draft"  # what the first versions left when a start was killed


@dataclass
class Draft:
    """A folder under its temporary name, and its final path."""

    place: Path
    path: Path
    published: bool = False

    def publish(self) -> None:
        """Move the folder into place."""
        with writing(self.path):
            flush(self.place)
            if self.place.parent == self.path:
                last = ("config.toml", LOCK)  # with its config, it is a run folder
                names = sorted(os.listdir(self.place), key=lambda name: (name in last, name == LOCK))
                for name in names:
                    (self.place / name).rename(self.path / name)
                self.place.rmdir()
                (self.path / OLD_DRAFT).unlink(missing_ok=True)
            else:
                self.place.rename(self.path)
            flush(self.path.parent)
        self.published = True


@contextmanager
def drafting(path: Path) -> Iterator[Draft]:
    """Make a new folder, locked from now on; it is deleted if anything goes wrong before it is published.

    It is made beside its final path or, if that is an empty folder already, inside: that may be the root of a disk.
    """
    _refuse_taken(path)
    place = path / DRAFT if path.is_dir() else path.with_name(f".{path.name}{DRAFT}")
    made = [folder for folder in place.parents if not folder.exists()]
    draft = Draft(place, path)
    try:
        make_folder(place)
        with locked(place, path):
            _refuse_taken(path)  # again, now that nobody else can take it
            _clear(place)  # what a kill left
            try:
                yield draft
            finally:
                if not draft.published:
                    shutil.rmtree(place, ignore_errors=True)
    except Unwritable as error:
        if draft.published:
            raise
        raise FedTailorError(f"{error} Nothing has begun: choose another --out, or make room.") from None
    finally:
        with suppress(OSError):  # not empty, so in use
            for folder in made:
                folder.rmdir()


def _refuse_taken(path: Path) -> None:
    if os.path.lexists(path) and not path.is_dir():
        raise FedTailorError(f"'{path}' is not a folder. Choose another --out.")
    names = set(os.listdir(path)) if path.exists() else set()
    cut_off = "config.toml" not in names and DRAFT in names
    if not cut_off and names - {OLD_DRAFT}:
        raise FedTailorError(
            f"'{path}' is not empty. Choose another --out, or carry on the run in it with:  fedtailor run --resume {path}"
        )


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
