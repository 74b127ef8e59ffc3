"""A run, in whatever state it was left, as tables and pictures need it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.draft import DRAFT
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run_folder import RunFolder, read_lines

log = logging.getLogger("fedtailor")


class _Plain(BaseModel):
    """What a report relies on in a file that may be damaged, or somebody else's."""

    model_config = ConfigDict(strict=True)


class _Part(_Plain):
    name: str


class _Config(_Plain):
    method: _Part
    data: _Part
    partition: _Part
    net: _Part
    clients: int
    seed: int
    rounds: int


Round = Annotated[int, Field(ge=0, le=10**9)]


class _Record(_Plain):
    round: Round
    phase: str
    step: Round = 0
    select_by: str = "accuracy"
    accuracy: float | None = None
    accuracy_mean: float | None = None
    best_accuracy: float | None = None
    spread: float | None = None
    worst_decile: float | None = None
    bytes_up: float
    bytes_down: float
    seconds_training: float = 0.0
    seconds_evaluation: float = 0.0
    seconds_communication: float = 0.0


class _Line(_Plain):
    model_config = ConfigDict(strict=True, extra="allow")  # values of other metrics, by name

    round: Round
    phase: str
    logged: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], dict[str, float | None]]
    accuracy: list[float | None] | None = None


T = TypeVar("T")
BLOCK = 1 << 16  # bytes


@dataclass(frozen=True)
class Labels:
    """Who holds which labels: `counts` is clients × classes."""

    clients: list[str]
    labels: list[str]
    counts: np.ndarray


@dataclass(frozen=True)
class Result:
    """One run, read back from its folder."""

    path: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    clients: np.ndarray  # last value of the headline metric of each client, NaN where there is none
    state: str
    command: str = ""

    @property
    def method(self) -> str:
        return Path(self.config["method"]["name"]).stem

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def rounds(self) -> int:
        """Rounds that were carried out."""
        return self.records[-1]["round"] if self.records else 0

    @property
    def last(self) -> dict[str, Any]:
        return self.evaluated[-1]

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        return [r for r in self.records if r.get(self.headline.mean) is not None]

    @property
    def headline(self) -> Headline:
        """The metric that selects and ranks."""
        return Headline.of(self.records[0] if self.records else {})

    @property
    def validated(self) -> bool:
        """Whether the best round was chosen on validation samples."""
        return bool(self.config.get("validation", 0))

    @cached_property
    def bytes_per_round(self) -> float:
        rounds = [r for r in self.records if r["phase"] == "round"]
        return sum(r["bytes_up"] + r["bytes_down"] for r in rounds) / len(rounds)

    @cached_property
    def seconds(self) -> float:
        activities = [key for key in self.records[0] if key.startswith("seconds_")]
        return sum(record[activity] for record in self.records for activity in activities)

    @property
    def seconds_per_round(self) -> float:
        return self.seconds / len(self.records)

    @property
    def curve(self) -> tuple[list[int], list[float]]:
        """Steps (rounds, then closing steps) and the clients' mean of the headline metric at each."""
        steps = [r["round"] + r.get("step", 0) for r in self.evaluated]
        return steps, [r[self.headline.mean] for r in self.evaluated]

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Of clients.jsonl: what the clients scored and logged. They are many, so they are read when they are asked for."""
        file = RunFolder(self.path).clients
        return _checked(read_lines(file), list[_Line], file)

    @cached_property
    def labels(self) -> Labels | None:
        """None if the run has not written them."""
        try:
            read = json.loads(RunFolder(self.path).labels.read_text())
            counts = np.array(read["counts"], dtype=int)
            if counts.ndim != 2 or len(read["clients"]) != len(counts):
                return None
            names = read["labels"] if len(read["labels"]) == counts.shape[1] else range(counts.shape[1])
            return Labels([str(c) for c in read["clients"]], [str(n) for n in names], counts)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


def read_run(path: Path) -> Result:
    """Read a run folder, whatever state it was left in, even before its first round."""
    folder = RunFolder.open(path)
    config = _checked(read_toml(folder.config), _Config, folder.config)
    records = _checked(read_lines(folder.metrics), list[_Record], folder.metrics)
    headline = Headline.of(records[0] if records else {}).name
    if damaged := folder.damage():
        log.warning("'%s' is not what it was when the run was finished: edited or damaged.", path / damaged)
    return Result(path, config, records, _last_values(folder.clients, headline), folder.state, folder.command)


def read_result(path: Path) -> Result:
    """Read a run folder that has at least one evaluated round."""
    result = read_run(path)
    if not result.evaluated:
        raise FedTailorError(f"'{path}' has no finished round yet (state: {result.state}).")
    return result


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among these folders and below them, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise FedTailorError(f"'{path}' is not a folder. Name a run folder, or one that holds run folders.")
        runs = (
            [path]
            if (path / "config.toml").is_file()
            else sorted(p.parent for p in path.rglob("config.toml") if not p.parent.name.endswith(DRAFT))
        )
        if not runs:
            raise FedTailorError(f"'{path}' holds no run: neither it nor a folder in it has a config.toml.")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_results(path: Path) -> list[Result]:
    """The run in a folder, or all runs of a comparison."""
    return [read_result(run) for run in find_runs([path])]


def _last_values(path: Path, metric: str) -> np.ndarray:
    """Of the last evaluation. The file is read from its end: thousands of rounds need not be parsed for one."""
    for line in _backwards(path) if path.exists() else ():
        try:
            read = _Line.model_validate_json(line)
        except ValidationError:
            continue  # cut short by a kill
        values = read.accuracy if metric == "accuracy" else (read.model_extra or {}).get(metric)
        if values is not None:
            return np.array([np.nan if v is None else v for v in values], dtype=float)
    return np.array([])


def _checked(read: T, kind: Any, file: Path) -> T:
    """What was read, if it has what a report needs of it."""
    try:
        TypeAdapter(kind).validate_python(read)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise FedTailorError(f"'{file}' is damaged or not that of a run: {where}: {first['msg']}.") from None
    return read


def _backwards(path: Path) -> Iterator[bytes]:
    """The lines of a file, last first."""
    with path.open("rb") as file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end > 0:
            start = max(0, end - BLOCK)
            file.seek(start)
            first, *lines = (file.read(end - start) + rest).split(b"\n")
            yield from reversed(lines)
            end, rest = start, first
        yield rest
