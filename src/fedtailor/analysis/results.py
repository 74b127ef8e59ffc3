"""Runs read back from their folders, whatever state they were left in."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedtailor.data.description import Description
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.draft import DRAFT
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run_folder import TABLE, RunFolder, read_lines

log = logging.getLogger("fedtailor")

Round = Annotated[int, Field(ge=0, le=10**9)]


class _Checked(BaseModel):
    """Schema of what a report relies on in a file that may be damaged or untrusted."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Choice(_Checked):
    name: str


class _Config(_Checked):
    method: _Choice
    data: _Choice
    partition: _Choice
    net: _Choice
    clients: int
    seed: int
    rounds: int


class _Record(_Checked):
    round: Round
    phase: str
    step: Round = 0
    select_by: str = ""
    lower_is_better: bool = False
    accuracy: float | None = None
    accuracy_mean: float | None = None
    bytes_up: float
    bytes_down: float
    seconds_training: float = 0.0
    seconds_evaluation: float = 0.0
    seconds_communication: float = 0.0


class _Line(_Checked):
    round: Round
    phase: str
    step: Round = 0
    logged: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], dict[str, float | None]]
    accuracy: list[float | None] | None = None


@dataclass(frozen=True)
class Labels:
    """Who holds which labels: `counts` is clients × classes."""

    clients: Sequence[str]
    labels: Sequence[str]
    counts: np.ndarray


T = TypeVar("T")
Scores = dict[str, np.ndarray]  # metric -> the last value of each client, NaN where there is none


@dataclass(frozen=True)
class Result:
    """One run, read back from its folder."""

    path: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    scores: Scores
    state: str
    command: str = ""

    @property
    def metric(self) -> Headline:
        """The metric used to select and rank."""
        return Headline.of_record(self.records[-1] if self.records else {})

    def clients(self, metric: Headline | None = None) -> np.ndarray:
        """Return the last value of each client; NaN where there is none."""
        return self.scores.get((metric or self.metric).name, np.array([]))

    @property
    def client_names(self) -> Sequence[str]:
        count = max(map(len, self.scores.values()), default=0)
        known = (self.labels.clients if self.labels else (), [row["name"] for row in self.table])
        return next((names for names in known if len(names) == count), [f"client {i}" for i in range(count)])

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
    def progress(self) -> str:
        """How far the run came: 'finished', or 'failed after round 3 of 20'."""
        done = self.records[-1]["round"] if self.records else 0
        return "finished" if self.finished else f"{self.state} after round {done} of {self.config['rounds']}"

    @property
    def last(self) -> dict[str, Any]:
        return self.evaluated[-1]

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        """The records with a value of the selecting metric."""
        return [r for r in self.records if np.isfinite(self.metric.of(r, "mean"))]

    @property
    def nothing_to_show(self) -> str:
        """Why no record has a value of the selecting metric."""
        if any(r.get("loss") is not None for r in self.records):
            title = self.metric.title
            return f"'{self.path}' has no value of {title}, which is undefined at every client: let another metric select (select_by)."
        return f"'{self.path}' has no finished round yet (state: {self.state})."

    @cached_property
    def bytes_per_round(self) -> float:
        rounds = [r for r in self.records if r["phase"] == "round"]
        return sum(r["bytes_up"] + r["bytes_down"] for r in rounds) / len(rounds)

    @cached_property
    def seconds(self) -> float:
        return sum(value for r in self.records for name, value in r.items() if name.startswith("seconds_"))

    def curve(self, metric: Headline | None = None) -> tuple[list[int], list[float]]:
        """Return the steps (rounds, then closing steps) and the mean over clients at each."""
        metric = metric or self.metric
        values = {r["round"] + r.get("step", 0): metric.of(r, "mean") for r in self.records}
        known = {step: value for step, value in values.items() if np.isfinite(value)}
        return list(known), list(known.values())

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of clients.jsonl: what clients scored and logged. Read on demand, since they are many."""
        file = RunFolder(self.path).clients
        return _checked(read_lines(file), list[_Line], file)

    @cached_property
    def table(self) -> list[dict[str, str]]:
        """The rows of clients.csv; empty until the run ends, or if the file is damaged."""
        try:
            with (self.path / TABLE).open(newline="", encoding="utf-8") as file:
                return [row for row in csv.DictReader(file) if row.get("name") is not None]
        except (OSError, ValueError, csv.Error):
            return []

    def samples(self, split: str) -> np.ndarray:
        """Return the clients' number of 'train' or 'test' samples, NaN where the run has not written it."""
        found = [row.get(f"{split}_samples") or "" for row in self.table]
        if len(found) != len(self.client_names):
            return np.full(len(self.client_names), np.nan)
        return np.array([float(text) if text.isdecimal() else np.nan for text in found])

    @cached_property
    def labels(self) -> Labels | None:
        """The clients' label counts; None if the run has not written them."""
        try:
            read = json.loads(RunFolder(self.path).labels.read_text())
            counts = np.array(read["counts"], dtype=int)
            if counts.ndim != 2 or len(read["clients"]) != len(counts):
                return None
            names = read["labels"] if len(read["labels"]) == counts.shape[1] else range(counts.shape[1])
            return Labels([str(c) for c in read["clients"]], [str(n) for n in names], counts)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    @cached_property
    def description(self) -> Description | None:
        """How the data was described; None if the run has not written it, or if the file is damaged."""
        try:
            return Description.load(self.path / "description.json")
        except FedTailorError:
            return None


def read_run(path: Path) -> Result:
    """Read a run folder, whatever state it was left in, even before its first round."""
    folder = RunFolder.open(path)
    config = _checked(read_toml(folder.config), _Config, folder.config)
    records = _checked(read_lines(folder.metrics), list[_Record], folder.metrics)
    if damaged := folder.damage():
        log.warning("'%s' is not what it was when the run was finished: edited or damaged.", path / damaged)
    return Result(path, config, records, _last_scores(folder.clients), folder.state, folder.command)


def read_result(path: Path) -> Result:
    """Read a run folder that has at least one evaluated round."""
    result = read_run(path)
    if not result.evaluated:
        raise FedTailorError(result.nothing_to_show)
    return result


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders among these folders and below them, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise FedTailorError(f"'{path}' is not a folder. Name a run folder, or one that holds run folders.")
        files = [path / "config.toml"] if (path / "config.toml").is_file() else sorted(path.rglob("config.toml"))
        runs = [file.parent for file in files if not file.parent.name.endswith(DRAFT) and not _is_site(file.parent)]
        if not runs:
            raise FedTailorError(f"'{path}' holds no run: neither it nor a folder in it has a config.toml.")
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _is_site(folder: Path) -> bool:
    """Whether it is the folder of a site, which has a model and its config, but no run."""
    return (folder / "site.toml").exists()


def read_results(path: Path) -> list[Result]:
    """Read the run in a folder, or all runs of a comparison."""
    return [read_result(run) for run in find_runs([path])]


def _last_scores(path: Path) -> Scores:
    """Read the last evaluation; parses only the last lines, so that its cost hardly grows with the number of rounds."""
    for line in reversed(path.read_bytes().splitlines() if path.exists() else []):
        try:
            read = _Line.model_validate_json(line)
        except ValidationError:
            continue  # cut short by a kill
        lists = {name: values for name, values in read if isinstance(values, list)}
        if lists:
            return {
                k: np.array([v if isinstance(v, int | float) else np.nan for v in values])
                for k, values in lists.items()
            }
    return {}


def _checked(read: T, kind: Any, file: Path) -> T:
    """Return what was read if it has what a report needs."""
    try:
        TypeAdapter(kind).validate_python(read)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise FedTailorError(f"'{file}' is damaged or not that of a run: {where}: {first['msg']}.") from None
    return read
