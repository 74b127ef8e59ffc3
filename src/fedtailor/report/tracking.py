"""Log a run's numbers to TensorBoard or MLflow too."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import Watch
from fedtailor.experiment.simulation import Record
from fedtailor.report.groups import flat


class Tracker(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"


@contextmanager
def tracking(tracker: Tracker | None, config: Config, folder: Path) -> Iterator[Watch]:
    """Yield a watch that logs the numbers of every round; without a tracker it does nothing."""
    if tracker is None:
        yield lambda record: None
        return
    sink = TensorBoard(folder) if tracker is Tracker.tensorboard else MLflow(folder, config)
    try:
        yield lambda record: sink.log(_numbers(record), record["round"] + record.get("step", 0))
    finally:
        sink.close()


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs` shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self.module = _needed("tensorboard.summary")

    @cached_property
    def writer(self) -> Any:
        return self.module.Writer(str(self.folder))  # not before the first round: a run starts in an empty folder

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        if "writer" in self.__dict__:
            self.writer.close()


class MLflow:
    """A run of the experiment `fedtailor`, at MLFLOW_TRACKING_URI or, if that is not set, in the run folder."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 wants to be asked for plain files
        self.tracking, self.entities = _needed("mlflow.tracking"), _needed("mlflow.entities")

    @cached_property
    def client(self) -> Any:
        return self.tracking.MlflowClient(
            os.environ.get("MLFLOW_TRACKING_URI") or (self.folder / "mlflow").resolve().as_uri()
        )

    @cached_property
    def run(self) -> str:
        known = self.client.get_experiment_by_name("fedtailor")
        experiment = known.experiment_id if known else self.client.create_experiment("fedtailor")
        run: str = self.client.create_run(experiment, run_name=self.folder.name).info.run_id
        for name, value in flat(self.config.values()).items():
            self.client.log_param(run, name, value)
        return run

    def log(self, numbers: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, [self.entities.Metric(name, v, now, step) for name, v in numbers.items()])

    def close(self) -> None:
        if "run" in self.__dict__:
            self.client.set_terminated(self.run)


def _numbers(record: Record) -> dict[str, float]:
    named = {k: v for k, v in record.items() if k not in ("round", "step") and isinstance(v, int | float)}
    return {k: float(v) for k, v in named.items() if math.isfinite(v)}


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise FedTailorError(
            f"--track {name} needs a package that is not installed:  pip install 'fedtailor[track]'"
        ) from None
