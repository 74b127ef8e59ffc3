"""Checkpoints: the whole state of a run at the end of a round, as safetensors and JSON, written so that a kill cannot spoil it.

Random streams are named by (seed, round, client, purpose), so there is no generator to save: server state, client states and the round
are all there is. A checkpoint is written beside its final place and moved there when complete; the last two are kept. It also records
the length and checksum of the run's growing files, to verify that they still hold what belongs to it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file, save_file

from fedtailor.experiment.formats import FORMAT, check_format
from fedtailor.experiment.journal import Mark, read_marks
from fedtailor.files import flush, replace_text, writing
from fedtailor.learning.mixing import State

log = logging.getLogger("fedtailor")

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    server: State
    clients: dict[int, State]
    files: Mapping[str, Mark] = field(default_factory=dict)  # marks of the files that grow with the run


def save(folder: Path, checkpoint: Checkpoint, oldest: int | None = None) -> None:
    """Save a checkpoint, and delete later ones, whose rounds are being run again.

    Of earlier ones the last is kept, or with `oldest` all that are needed to go back to that round or a later one.
    """
    final = folder / f"round-{checkpoint.round:06d}"
    draft = folder / f".draft-{checkpoint.round:06d}"
    with writing(final):
        _clear(folder)
        draft.mkdir(parents=True)
        write_tensors(draft / "server.safetensors", checkpoint.server)
        flat = {f"{client}/{name}": t for client, state in checkpoint.clients.items() for name, t in state.items()}
        write_tensors(draft / "clients.safetensors", flat)
        _write_meta(draft, checkpoint)
        flush(draft)
        for round, path in _rounds(folder).items():
            if round >= checkpoint.round:
                _remove(path)
        draft.rename(final)
        flush(folder)
        rounds = _rounds(folder)
        if oldest is None:
            needed = list(rounds)[-KEPT:]
        else:
            base = max((r for r in rounds if r <= oldest), default=0)
            needed = [r for r in rounds if r >= base]
        for round, path in rounds.items():
            if round not in needed:
                _remove(path)


def drop_after(folder: Path, round: int) -> None:
    """Delete the checkpoints of later rounds, and what a kill left: unfinished ones, and older ones than are kept."""
    with writing(folder):
        _clear(folder)
        rounds = _rounds(folder)
        needed = [number for number in rounds if number <= round][-KEPT:]
        for number, path in rounds.items():
            if number not in needed:
                _remove(path)


def oldest_round(folder: Path) -> int:
    """Return the earliest round that a run can go back to: 0, its start, while there is no checkpoint."""
    return next(iter(_rounds(folder)), 0)


def load_latest(folder: Path, device: str = "cpu", upto: int | None = None) -> Checkpoint | None:
    """Load the newest intact checkpoint (of round `upto` at the latest); a damaged one is logged and skipped."""
    return next(load_all(folder, device, upto), None)


def load_all(folder: Path, device: str = "cpu", upto: int | None = None) -> Iterator[Checkpoint]:
    """Load the intact checkpoints, newest first; a damaged one is logged and skipped."""
    for round, path in reversed(_rounds(folder).items()):
        if upto is not None and round > upto:
            continue
        try:
            yield _load(path, round, device)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            log.warning("checkpoint %s is damaged (%s); using the one before it", path, problem)


def _rounds(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints in the order of rounds."""
    numbered = ((path.name.removeprefix("round-"), path) for path in folder.glob("round-*"))
    return dict(sorted((int(number), path) for number, path in numbered if number.isdecimal()))


def _clear(folder: Path) -> None:
    """Delete drafts that a kill left."""
    for left in folder.glob(".draft-*"):
        shutil.rmtree(left)


def _remove(path: Path) -> None:
    """Delete a checkpoint, renaming it first: a kill leaves no half of one under its name."""
    gone = path.with_name(f".draft-{path.name}")
    path.rename(gone)
    shutil.rmtree(gone)


def _write_meta(draft: Path, checkpoint: Checkpoint) -> None:
    """Write checkpoint.json: what a checkpoint holds beside its tensors, all checksums, and its own."""
    meta: dict[str, Any] = {
        "format": FORMAT,
        "round": checkpoint.round,
        "clients": sorted(checkpoint.clients),  # a client's state may be empty
        "sha256": {path.name: _digest(path) for path in sorted(draft.iterdir())},
        "files": {name: asdict(mark) for name, mark in checkpoint.files.items()},
    }
    replace_text(draft / "checkpoint.json", json.dumps({**meta, "self": _own_sum(meta)}))


def _read_meta(path: Path, round: int) -> dict[str, Any]:
    meta = json.loads((path / "checkpoint.json").read_bytes())
    own = meta.pop("self", None)  # the first versions had none
    if own is not None and own != _own_sum(meta):
        raise ValueError("checkpoint.json does not match its checksum")
    check_format(meta, f"checkpoint '{path}'")
    if meta["round"] != round:
        raise ValueError(f"checkpoint.json is of round {meta['round']}")
    return meta


def _own_sum(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _load(path: Path, round: int, device: str) -> Checkpoint:
    meta = _read_meta(path, round)
    for name in ("server.safetensors", "clients.safetensors"):
        if _digest(path / name) != meta["sha256"][name]:
            raise ValueError(f"{name} does not match its checksum")
    server = read_tensors(path / "server.safetensors", device)
    clients: dict[int, State] = {int(client): {} for client in meta["clients"]}
    for key, tensor in read_tensors(path / "clients.safetensors", device).items():
        client, _, name = key.partition("/")
        clients[int(client)][name] = tensor
    return Checkpoint(round, server, clients, read_marks(meta.get("files", {})))


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    with writing(path):
        save_file({name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}, path)
        flush(path)


def read_tensors(path: Path, device: str = "cpu") -> State:
    return {name: torch.from_numpy(array).to(device) for name, array in load_file(path).items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
