"""Folders of images: one folder per class, or one per client and class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.data.images import SUFFIXES, decoded
from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.files import located
from fedtailor.errors import FedTailorError
from fedtailor.registry import option

TRAIN, TEST, VALIDATION = ("train", "training"), ("test", "testing"), ("val", "valid", "validation")


class Picture(NamedTuple):
    file: Path
    label: str
    client: str = ""
    test: bool = False


@sources.register("folder", "image-folder")
@dataclass(frozen=True)
class Folder(Source):
    """Images sorted into folders, path/CLASS/* or path/CLIENT/CLASS/*, below train and test folders where there are such."""

    path: str = option("", "the folder")
    size: int = option(0, "resize every image to size×size pixels; 0 keeps them as they are", at_least=0, at_most=4096)
    channels: Literal[1, 3] = option(3, "3 for colour, 1 for grey")
    client_folders: bool = option(False, "the first level of folders names clients, the second classes")

    @property
    def fitting_partition(self) -> str:
        return "natural" if self.client_folders else super().fitting_partition

    def read(self, root: Path) -> Pool:
        top = located(self.path, root, self.name)
        pictures = [
            picture
            for part, test in _official_parts(top)
            for client, folder in (_folders(part) if self.client_folders else [("", part)])
            for picture in _pictures(folder, client, test)
        ]
        if not pictures:
            layout = "CLIENT/CLASS" if self.client_folders else "CLASS"
            raise FedTailorError(
                f"{top} holds no images laid out as {layout}/image. Image files end in {', '.join(SUFFIXES)}."
            )
        return replace(_pool(pictures, root, self.size, self.channels), keep_split=True)


@sources.register("tiny-imagenet", "tinyimagenet", "tiny")
@dataclass(frozen=True)
class TinyImageNet(Source):
    """100,000 photographs in 200 classes, 64×64: the training folder, as the papers use it (Le and Yang, 2015)."""

    def read(self, root: Path) -> Pool:
        return _class_folders(self.name, root, root / "tiny-imagenet-200" / "train")


@sources.register("flowers102", "flowers-102")
@dataclass(frozen=True)
class Flowers102(Source):
    """8,189 photographs of flowers in 102 classes, cropped to 64×64 (Nilsback and Zisserman, 2008)."""

    def read(self, root: Path) -> Pool:
        how = f"Crop and resize the pictures to 64×64 and put each into {root / 'flowers102-64'}/CLASS/, CLASS being 001 to 102."
        return _class_folders(self.name, root, root / "flowers102-64", how)


def _class_folders(name: str, root: Path, folder: Path, how: str = "") -> Pool:
    pictures = list(_pictures(folder)) if folder.is_dir() else []
    if not pictures:
        raise missing(name, [folder / "CLASS" / "*.jpg"], how)
    return _pool(pictures, root, 64, 3)


def _official_parts(top: Path) -> list[tuple[Path, bool]]:
    """List (folder, whether it is the test part). A validation folder is the test part only if there is no other."""
    folders = dict(_folders(top))
    kinds = {name: name.lower() for name in folders}
    if not all(kind in TRAIN + TEST + VALIDATION for kind in kinds.values()) or not set(TRAIN) & set(kinds.values()):
        return [(top, False)]
    held_out = TEST if set(TEST) & set(kinds.values()) else VALIDATION
    return [(folder, kinds[name] in held_out) for name, folder in folders.items()]


def _folders(top: Path) -> list[tuple[str, Path]]:
    if not top.is_dir():
        raise FedTailorError(f"{top} is not a folder.")
    return sorted((entry.name, entry) for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _pictures(folder: Path, client: str = "", test: bool = False) -> Iterator[Picture]:
    for label, below in _folders(folder):
        # Tiny-ImageNet keeps the images of a class in a further folder beside a text file.
        files = (Path(at, name) for at, _, names in os.walk(below) for name in names)
        for file in sorted(f for f in files if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")):
            yield Picture(file, label, client, test)


def _pool(pictures: list[Picture], root: Path, size: int, channels: int) -> Pool:
    labels, y = np.unique([p.label for p in pictures], return_inverse=True)
    owners, owner = np.unique([p.client for p in pictures], return_inverse=True)
    test = np.array([p.test for p in pictures])
    has_clients = owners[0] != ""
    return Pool(
        decoded([p.file for p in pictures], root, size, channels),
        y.astype(np.int64),
        classes=len(labels),
        owner=owner if has_clients else None,
        owners=tuple(map(str, owners)) if has_clients else (),
        test=test if test.any() else None,
        labels=tuple(map(str, labels)),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
    )
