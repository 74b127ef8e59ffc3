"""Trials on disk: one file each, written when the trial has ended, so that a search that was killed goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor.errors import FedTailorError
from fedtailor.files import replace_text


class Trial(BaseModel):
    """One short run with some settings: what it scored on validation samples decides, what it scored on test samples is only shown."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    number: int = Field(ge=0)
    drawn: dict[str, Any]
    values: dict[str, Any]  # as the run had them
    state: Literal["complete", "pruned", "failed"]
    metric: str
    lower_is_better: bool = False
    rounds: dict[int, float]  # round -> score on validation samples
    score: float | None = None  # that of the final personal models
    loss: float | None = None  # theirs on validation samples, which breaks ties
    test: float | None = None  # mean over clients on test samples
    best_test: float | None = None  # the best round's, as who reports the best test round would have it
    seconds: float = 0.0

    @property
    def order(self) -> tuple[float, float]:
        """The larger, the better."""
        assert self.score is not None
        sign = -1 if self.lower_is_better else 1
        return sign * self.score, -(self.loss if self.loss is not None else 0.0)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the best score on validation samples."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        raise FedTailorError(
            f"None of {len(trials)} trials has a score on validation samples: all diverged, or no client has samples to hold out. Look at "
            "their files, or give settings that work, such as lr=0.01."
        )
    return max(complete, key=lambda trial: trial.order)


def read_trials(folder: Path) -> list[Trial]:
    """Read the trials of one method, in order, up to the first that is missing."""
    trials: list[Trial] = []
    while (file := _file(folder, len(trials))).exists():
        try:
            trial = Trial.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
            raise FedTailorError(f"'{file}' cannot be read ({reason}): delete it to repeat the trial.") from None
        if trial.number != len(trials):
            raise FedTailorError(f"'{file}' is that of trial {trial.number}: delete it to repeat the trial.")
        trials.append(trial)
    return trials


def write_trial(folder: Path, trial: Trial) -> None:
    replace_text(_file(folder, trial.number), trial.model_dump_json(indent=1))


def _file(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:03d}.json"
