"""What the finished runs of claims are judged by, in a file that outlasts their folders: a campaign can go on on another machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedtailor.data.pool import data_root
from fedtailor.errors import FedTailorError
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.files import replace_text
from fedtailor.papers.estimate import seconds_per_step
from fedtailor.papers.grid import Job
from fedtailor.papers.measures import MeasuredRun

FILE = "evidence-runs.json"
LAST = 0.8  # the last fifth of the rounds begins here
DIGITS = 8  # of a score: a verdict's numbers have four decimals of a point


class FinishedRun(BaseModel):
    """By metric: the last score of each client, and the points gained over the last fifth of the rounds."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    overrides: str  # their digest: a run under another protocol is another run
    scores: dict[str, list[float | None]]
    gains: dict[str, float]
    seconds: float = Field(ge=0)
    steps: int = Field(ge=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if "accuracy" not in self.scores or self.scores.keys() != self.gains.keys():
            raise ValueError("each run has accuracies, and a gain for each of its metrics")
        if len({len(scores) for scores in self.scores.values()}) > 1:
            raise ValueError("a run has the same clients in each of its metrics")
        return self

    def clients(self, metric: str) -> np.ndarray:
        return np.array(self.scores[metric], dtype=float)


Finished = Mapping[str, FinishedRun]


def finished_runs(jobs: Iterable[Job]) -> dict[str, FinishedRun]:
    """Read the finished runs among these from their folders."""
    return {job.name: _read(job) for job in jobs if job.finished}


def run_of(job: Job, finished: Finished) -> FinishedRun | None:
    """Return the finished run of that name, if it ran with the same overrides."""
    run = finished.get(job.name)
    return run if run and run.overrides == digest(job) else None


def kept_runs(folder: Path) -> dict[str, FinishedRun]:
    """Return the runs that the folder's file keeps; none if there is no such file."""
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        return {name: FinishedRun.model_validate(run) for name, run in json.loads(file.read_text()).items()}
    except (ValueError, AttributeError, ValidationError) as error:
        raise FedTailorError(
            f"{file} is not a file of finished runs ({type(error).__name__}). Restore it, or delete it to begin anew."
        ) from None


def keep_runs(folder: Path, finished: Finished) -> Path:
    """Add runs to the folder's file, one line per run. It is read again: another command may have added some meanwhile."""
    every = {**kept_runs(folder), **finished}
    lines = [f"{json.dumps(name)}: {every[name].model_dump_json()}" for name in sorted(every)]
    replace_text(folder / FILE, "{\n" + ",\n".join(lines) + "\n}\n")
    return folder / FILE


def last_gain(run: MeasuredRun, metric: str) -> float:
    """Return the points that the mean over clients gained over the last fifth of the rounds; 0 for a method that fine-tunes after them.

    What its clients have before fine-tuning says little about what they have afterwards.
    """
    if run.config.method.closing_steps:
        return 0.0
    mean = Headline(metric)
    values = {r["round"]: mean.of(r, "mean") for r in run.rounds}
    known = {r: value for r, value in values.items() if np.isfinite(value)}
    before = [value for r, value in known.items() if r <= LAST * run.config.settings.rounds]
    return 100 * (list(known.values())[-1] - before[-1]) if before else np.inf


def _read(job: Job) -> FinishedRun:
    run = MeasuredRun(job.folder, job.config)
    records = RunFolder(job.folder).records()
    metrics = ["accuracy", *(metric for metric in run.config.settings.metrics if isinstance(metric, str))]
    return FinishedRun(
        overrides=digest(job),
        scores={metric: _rounded(run.scores(metric)) for metric in metrics},
        gains={metric: _significant(last_gain(run, metric)) for metric in metrics},
        seconds=round(seconds_per_step(records) * len(records), 1),
        steps=len(records),
    )


def digest(job: Job) -> str:
    """Return a digest of the run's overrides, in which the data folder has no path."""
    text = " ".join(job.overrides).replace(str(data_root()), "{data}")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _rounded(scores: np.ndarray) -> list[float | None]:
    return [_significant(score) if np.isfinite(score) else None for score in scores]


def _significant(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
