"""Read initial weights from a file: only named tensors, never code."""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes
from fedtailor.nets.net import last_linear


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Copy a file's tensors into `module`; all names and shapes must agree.

    Only the head may differ, since the classes usually do: it keeps its own weights unless the file has weights of the right shape.
    Half-precision tensors are converted to the module's type.
    """
    found = _read(Path(os.path.expanduser(path)))
    own = module.state_dict()
    prefix = last_linear(module) + "."
    head = [name for name in own if name.startswith(prefix)]
    if any(name not in found or found[name].shape != own[name].shape for name in head):
        for name in head:
            own.pop(name)
            found.pop(name, None)
    _check(own, found, path)
    with torch.no_grad():
        for name, tensor in found.items():
            own[name].copy_(tensor)


def provenance(path: str | Path) -> dict[str, str]:
    """Describe a file of weights: its name, its checksum, and the metadata of a .safetensors file."""
    path = Path(os.path.expanduser(path))
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    metadata: dict[str, str] = {}
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
    return {**metadata, "file": path.name, "sha256": checksum}


def _check(own: dict[str, Tensor], found: dict[str, Tensor], path: str | Path) -> None:
    # This counter of BatchNorm only matters with momentum=None; many files lack it.
    missing = [n for n in own if n not in found and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in found if n not in own]
    misshapen = [
        f"{n} is {tuple(t.shape)} in the file and {tuple(own[n].shape)} in the net"
        for n, t in found.items()
        if n in own and t.shape != own[n].shape
    ]
    wrong = [
        f"{what}: {_first(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("shapes", misshapen))
        if names
    ]
    if wrong:
        raise FedTailorError(
            f"The weights in '{path}' do not fit the net.\n  " + "\n  ".join(wrong) + "\n"
            "Use weights made for the same architecture, options and input channels, or leave the weights out."
        )


def _read(path: Path) -> dict[str, Tensor]:
    if not os.path.isfile(path):
        raise FedTailorError(f"The weights file '{path}' does not exist (looked in {Path.cwd()}).")
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise FedTailorError(f"'{path}' is not a weights file: expected .safetensors, .pth or .pt.")
    check_bytes(_unpacked_size(path), f"The weights file '{path}'")
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged or hostile file may fail in any way, and torch advises to load it unsafely
        raise FedTailorError(
            f"'{path}' could not be read as plain tensors: it is damaged, or it holds other Python objects, which are never loaded. "
            "Save the module's state_dict() as .safetensors."
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        inside = _first(map(str, tensors)) if isinstance(tensors, dict) else type(tensors).__name__
        raise FedTailorError(
            f"'{path}' is not a state_dict (names to tensors): it holds {inside}. Save the module's state_dict() alone."
        )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise FedTailorError(f"'{path}' holds NaN or infinite values in {name}. Training cannot start from them.")
    return dict(tensors)


def _unpacked_size(path: Path) -> int:
    """Return how many bytes of tensors a file can hold; for a .pth, a zip archive, the size that its members declare."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile, struct.error):
        return path.stat().st_size


def _first(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
