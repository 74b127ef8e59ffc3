"""The lengths of a run's growing files at a round, where checkpoints carry no marks, as those of the first versions do not.

Without checksums the files are checked against each other: rounds without a gap, results of all clients wherever the metrics have
any, and as many bytes in the ledger as in the metrics.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedtailor.experiment.ledger import HEADER


def lengths(folder: Path, round: int) -> dict[str, int] | str:
    """Return the bytes of each file up to the end of a round, or the name of the first file that is incomplete."""
    try:
        name = "metrics.jsonl"
        records, metrics = _records(folder / name, round)
        name = "clients.jsonl"
        clients = _clients(folder / name, round, [r["round"] for r in records if r["loss"] is not None])
        name = "ledger.csv"
        moved = {(r["round"], way): r[f"bytes_{way}"] for r in records for way in ("up", "down")}
        ledger = _ledger(folder / name, round, moved)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return name
    return {"metrics.jsonl": metrics, "clients.jsonl": clients, "ledger.csv": ledger}


def closing_steps(path: Path) -> int:
    """Count the closing steps in a metrics file."""
    try:
        return sum(json.loads(line)["phase"] == "finish" for line in path.read_bytes().splitlines())
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _records(path: Path, round: int) -> tuple[list[dict[str, Any]], int]:
    records: list[dict[str, Any]] = []
    size = 0
    for line in _lines(path):
        if len(records) == round:
            break
        record = json.loads(line)
        if (record["round"], record["phase"]) != (len(records) + 1, "round"):
            raise ValueError("a round is missing")
        records.append(record)
        size += len(line)
    if len(records) < round:
        raise ValueError("rounds are missing")
    return records, size


def _clients(path: Path, round: int, evaluated: list[int]) -> int:
    found, counts, size = [], set(), 0
    for line in _lines(path) if evaluated or path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            break  # if it was needed, it will be missed
        if record["round"] > round or record["phase"] != "round":
            break
        if "loss" in record:
            found.append(record["round"])
            counts.add(len(record["loss"]))
        size += len(line)
    if found != evaluated or len(counts) > 1:
        raise ValueError("results are missing")
    return size


def _ledger(path: Path, round: int, expected: dict[tuple[int, str], int]) -> int:
    moved: Counter[tuple[int, str]] = Counter()
    size = 0
    for line in _lines(path):
        text = line.decode().rstrip("\n")
        if size == 0:
            if text != HEADER:
                raise ValueError("no header")
        else:
            fields = text.split(",")
            if len(fields) != 5 or int(fields[0]) > round:
                break  # if it was needed, it will be missed
            if int(fields[0]):
                moved[int(fields[0]), fields[2]] += int(fields[4])
        size += len(line)
    if size == 0 or any(moved[key] != count for key, count in expected.items()):
        raise ValueError("bytes are missing")
    return size


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
