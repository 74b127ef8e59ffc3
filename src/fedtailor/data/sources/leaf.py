"""FEMNIST as the LEAF benchmark writes it: JSON files of users with their samples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.pool import Pool, Source, missing, sources
from fedtailor.data.sources.files import check_labels, file_bytes
from fedtailor.errors import FedTailorError

CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@sources.register("femnist")
@dataclass(frozen=True)
class Femnist(Source):
    """Handwritten digits and letters, 28×28 in 62 classes, each owned by its writer (Caldas et al., 2018)."""

    @property
    def fitting_partition(self) -> str:
        return "natural"

    def read(self, root: Path) -> Pool:
        folders = [root / "femnist", root / "femnist" / "data"]
        found = [(file, part == "test") for top in folders for part in ("train", "test") for file in _files(top / part)]
        if not found:
            how = "Make it with LEAF (github.com/TalwalkarLab/leaf, data/femnist) and put its train and test folders there."
            raise missing(self.name, [top / part / "*.json" for top in folders for part in ("train", "test")], how)
        pieces = [(user, x, y, test) for file, test in found for user, x, y in read_leaf(file)]
        owners = sorted({user for user, *_ in pieces})
        position = {user: i for i, user in enumerate(owners)}
        sizes = [len(y) for _, _, y, _ in pieces]
        return Pool(
            np.concatenate([x for _, x, _, _ in pieces]),
            np.concatenate([y for _, _, y, _ in pieces]),
            classes=len(CLASSES),
            owner=np.repeat([position[user] for user, *_ in pieces], sizes),
            owners=tuple(owners),
            test=np.repeat([test for *_, test in pieces], sizes),
            labels=tuple(CLASSES),
        )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def read_leaf(file: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Read (user, images, labels) for each user of one LEAF file."""
    try:
        content = json.loads(file_bytes(file))
    except (ValueError, RecursionError) as error:
        raise FedTailorError(f"{file} is not complete JSON ({error}). It is cut off or damaged.") from None
    try:
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        samples = [(str(user), data[user]["x"], data[user]["y"]) for user in users]
        promised = dict(zip(map(str, users), counts, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise FedTailorError(
            f"{file} is not a LEAF file: users, num_samples and user_data with x and y must agree ({error})."
        ) from None
    if not samples:
        raise FedTailorError(f"{file} holds no users.")
    return [_user(file, user, promised[user], x, y) for user, x, y in samples]


def _user(file: Path, user: str, promised: Any, x: Any, y: Any) -> tuple[str, np.ndarray, np.ndarray]:
    try:
        pixels, labels = np.array(x, np.float32), np.array(y)
    except (TypeError, ValueError, OverflowError) as error:
        raise FedTailorError(f"{file}: the samples of user '{user}' are not numbers of one length ({error}).") from None
    if pixels.shape != (promised, 784) or labels.shape != (promised,):
        raise FedTailorError(
            f"{file}: user '{user}' should have {promised} images of 784 numbers, but x has shape {pixels.shape} and y "
            f"{labels.shape}."
        )
    if labels.dtype.kind not in "iu":
        raise FedTailorError(f"{file}: the labels of user '{user}' are not whole numbers.")
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise FedTailorError(f"{file}: user '{user}' has pixels outside 0..1.")
    check_labels(labels, len(CLASSES), file)
    return user, np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28), labels.astype(np.int64)
