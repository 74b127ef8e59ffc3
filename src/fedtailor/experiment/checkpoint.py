"""Checkpoints: the whole state of a run at the end of a round, as safetensors and json, written so that a kill cannot spoil it.

Random streams are named by (seed, round, client, purpose), so there is no generator to save: server state, client states and the round
are all there is. A checkpoint is written beside its final place and moved there when it is complete; the last two are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import load_file, save_file

from fedtailor.learning.mixing import State

log = logging.getLogger("fedtailor")

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    server: State
    clients: dict[int, State]


def save(folder: Path, checkpoint: Checkpoint, oldest: int | None = None) -> None:
    """Add a checkpoint. Later ones are of rounds that are being run anew, and go.

    Of earlier ones the last is kept, or with `oldest` all that are needed to go back to that round or a later one.
    """
    final = folder / f"round-{checkpoint.round:06d}"
    draft = folder / f".draft-{checkpoint.round:06d}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write_tensors(draft / "server.safetensors", checkpoint.server)
    flat = {f"{client}/{name}": t for client, state in checkpoint.clients.items() for name, t in state.items()}
    write_tensors(draft / "clients.safetensors", flat)
    met = sorted(checkpoint.clients)  # a client may be met and have nothing to keep
    sums = {path.name: _digest(path) for path in sorted(draft.iterdir())}
    meta = draft / "checkpoint.json"
    meta.write_text(json.dumps({"round": checkpoint.round, "clients": met, "sha256": sums}))
    _flush(meta)
    for round, path in _rounds(folder).items():
        if round >= checkpoint.round:
            shutil.rmtree(path, ignore_errors=True)
    draft.rename(final)
    _flush(folder)
    rounds = _rounds(folder)
    if oldest is None:
        needed = list(rounds)[-KEPT:]
    else:
        base = max((r for r in rounds if r <= oldest), default=0)
        needed = [r for r in rounds if r >= base]
    for round, path in rounds.items():
        if round not in needed:
            shutil.rmtree(path, ignore_errors=True)


def oldest_round(folder: Path) -> int:
    """The earliest round that a run can go back to: 0, its start, while there is no checkpoint."""
    return next(iter(_rounds(folder)), 0)


def load_latest(folder: Path, device: str = "cpu", upto: int | None = None) -> Checkpoint | None:
    """The newest checkpoint (of round `upto` at the latest) that is whole; a damaged one is named and the one before it is used."""
    for round, path in reversed(_rounds(folder).items()):
        if upto is not None and round > upto:
            continue
        try:
            return _load(path, device)
        except (OSError, ValueError, KeyError) as problem:
            log.warning("checkpoint %s is damaged (%s); using the one before it", path, problem)
    return None


def _rounds(folder: Path) -> dict[int, Path]:
    """The checkpoints that were written to their end, in the order of rounds."""
    return {int(path.name.removeprefix("round-")): path for path in sorted(folder.glob("round-*"))}


def _load(path: Path, device: str) -> Checkpoint:
    meta = json.loads((path / "checkpoint.json").read_text())
    for name, expected in meta["sha256"].items():
        if _digest(path / name) != expected:
            raise ValueError(f"{name} does not match its checksum")
    server = read_tensors(path / "server.safetensors", device)
    clients: dict[int, State] = {int(client): {} for client in meta["clients"]}
    for key, tensor in read_tensors(path / "clients.safetensors", device).items():
        client, _, name = key.partition("/")
        clients[int(client)][name] = tensor
    return Checkpoint(int(meta["round"]), server, clients)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    save_file({name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}, path)
    _flush(path)


def read_tensors(path: Path, device: str = "cpu") -> State:
    return {name: torch.from_numpy(array).to(device) for name, array in load_file(path).items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
