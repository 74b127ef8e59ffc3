"""Small valid files of every kind that is read, each with its reader; mutations start from them."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, features
from safetensors.torch import save_file
from torch import Tensor, nn

import fedtailor.data.sources  # noqa: F401  (they register themselves)
from fedtailor.data.federation import Federation
from fedtailor.data.pool import sources
from fedtailor.nets.weights import load_weights

RNG = np.random.default_rng(7)
SAMPLES = 24


@dataclass(frozen=True)
class Kind:
    """A kind of file: writes its files into a folder, and reads that folder into the tensors that training would see."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], list[Tensor]]
    binary: bool = True


def federation_of(data: str, partition: str = "iid", **options: Any) -> Callable[[Path], list[Tensor]]:
    """Return a function that reads a source below a folder, and deals it."""

    def read(root: Path) -> list[Tensor]:
        given = {key: str(root / value) if key == "path" else value for key, value in options.items()}
        pool = sources.build(data, given).read(root)
        federation = Federation.from_pool(pool, partition, clients=2 if partition == "iid" else 0)
        assert str(federation)
        return [split.apart().x for client in federation.clients for split in (client.train, client.test)]

    return read


def _labels() -> np.ndarray:
    return np.arange(SAMPLES) % 3


def _measurements() -> np.ndarray:
    return RNG.normal(size=(SAMPLES, 5)).astype(np.float32)


def _write_table(file: Path) -> None:
    frame = pd.DataFrame(_measurements(), columns=list("abcde"))
    frame["word"] = [f"w{i % 4}" for i in range(SAMPLES)]
    frame["site"] = [f"site {i % 2}" for i in range(SAMPLES)]
    frame["label"] = [("ill", "well")[i % 2] for i in range(SAMPLES)]
    if file.suffix == ".parquet":
        frame.to_parquet(file, engine="pyarrow", row_group_size=10)
    else:
        frame.to_csv(file, index=False)


def _write_npz(file: Path, **more: np.ndarray) -> None:
    given = {
        "x": _measurements(),
        "y": _labels(),
        "client": np.arange(SAMPLES) % 2,
        "test": np.arange(SAMPLES) % 4 == 0,
    }
    np.savez_compressed(file, **(given | more))


def _write_arrays(folder: Path) -> None:
    np.save(folder / "x.npy", _measurements())
    np.save(folder / "y.npy", _labels())
    np.save(folder / "client.npy", np.array([f"site {i % 2}" for i in range(SAMPLES)]))


def _write_tokens(folder: Path) -> None:
    _write_npz(folder / "a.npz", x=RNG.integers(0, 50, (SAMPLES, 7)))


def _write_images(ending: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for i in range(8):
            place = folder / "scans" / f"site{i % 2}" / f"class{i // 4}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 255, (9, 11, 3), dtype=np.uint8)).save(place / f"{i}{ending}")

    return write


def _write_idx(packed: bool) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "mnist").mkdir()
        for part in ("train", "t10k"):
            pixels = RNG.integers(0, 255, (SAMPLES, 28, 28), dtype=np.uint8)
            images = struct.pack(">4B3I", 0, 0, 8, 3, *pixels.shape) + pixels.tobytes()
            labels = struct.pack(">4BI", 0, 0, 8, 1, SAMPLES) + _labels().astype(np.uint8).tobytes()
            for name, data in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
                whole = gzip.compress(data, mtime=0) if packed else data
                (folder / "mnist" / (name + (".gz" if packed else ""))).write_bytes(whole)

    return write


def _write_cifar_binary(folder: Path) -> None:
    (folder / "cifar-100-binary").mkdir()
    for name in ("train", "test"):
        records = RNG.integers(0, 20, (6, 2 + 3072), dtype=np.uint8)
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(records.tobytes())


def _write_cifar_pickle(folder: Path) -> None:
    (folder / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        batch = {"data": RNG.integers(0, 255, (6, 3072), dtype=np.uint8), "fine_labels": [1, 2, 3, 4, 5, 6]}
        (folder / "cifar-100-python" / name).write_bytes(pickle.dumps(batch, protocol=2))


def _write_leaf(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / "femnist" / part).mkdir(parents=True)
        data = {u: {"x": RNG.random((2, 784)).round(2).tolist(), "y": [3, 4]} for u in ("ann", "bob")}
        content = {"users": ["ann", "bob"], "num_samples": [2, 2], "user_data": data}
        (folder / "femnist" / part / "all.json").write_text(json.dumps(content))


def _write_pfllib(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"num_clients": 2, "num_classes": 3}))
    for part in ("train", "test"):
        (folder / part).mkdir()
        for client in range(2):
            data = {"x": _measurements(), "y": _labels()}
            np.savez_compressed(folder / part / f"{client}.npz", data=np.array(data, dtype=object))


def _write_texts(file: Path) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        for i in range(SAMPLES):
            writer.writerow([f"topic {i % 3}", f"A text, number {i}.", "and its “second” part"])


def _write_har(folder: Path) -> None:
    (folder / "har").mkdir()
    people = np.arange(SAMPLES) % 4
    _write_npz(folder / "har" / "har.npz", x=RNG.normal(size=(SAMPLES, 9, 128)).astype(np.float32), subject=people)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def _read_weights(name: str) -> Callable[[Path], list[Tensor]]:
    def read(folder: Path) -> list[Tensor]:
        module = _net()
        load_weights(module, folder / name)
        return list(module.state_dict().values())

    return read


TABLE: dict[str, Any] = {"client": "site", "features": ("a", "b", "word"), "partition": "natural"}
KINDS = [
    Kind("csv", lambda f: _write_table(f / "t.csv"), federation_of("table", path="t.csv", **TABLE), binary=False),
    Kind("csv.gz", lambda f: _write_table(f / "t.csv.gz"), federation_of("table", path="t.csv.gz", **TABLE)),
    Kind("parquet", lambda f: _write_table(f / "t.parquet"), federation_of("table", path="t.parquet", **TABLE)),
    Kind("npz", lambda f: _write_npz(f / "a.npz"), federation_of("arrays", "natural", path="a.npz")),
    Kind("npz of tokens", _write_tokens, federation_of("arrays", path="a.npz")),
    Kind("npy", _write_arrays, federation_of("arrays", "natural", path=".")),
    *(
        Kind(ending[1:], _write_images(ending), federation_of("folder", "natural", path="scans", client_folders=True))
        for ending in (".png", ".jpg", ".gif", ".bmp", ".tif", ".ppm", *([".webp"] if features.check("webp") else []))
    ),
    Kind("idx", _write_idx(False), federation_of("mnist")),
    Kind("idx.gz", _write_idx(True), federation_of("mnist")),
    Kind("cifar", _write_cifar_binary, federation_of("cifar100")),
    Kind("cifar pickle", _write_cifar_pickle, federation_of("cifar100")),
    Kind("leaf", _write_leaf, federation_of("femnist", "natural"), binary=False),
    Kind("pfllib", _write_pfllib, federation_of("pfllib", "natural", path=".")),
    Kind("text csv", lambda f: _write_texts(f / "t.csv"), federation_of("text-csv", path="t.csv"), binary=False),
    Kind("har", _write_har, federation_of("har", "natural")),
    Kind("safetensors", lambda f: save_file(_net().state_dict(), f / "w.safetensors"), _read_weights("w.safetensors")),
    Kind("pth", lambda f: torch.save(_net().state_dict(), f / "w.pth"), _read_weights("w.pth")),
]
