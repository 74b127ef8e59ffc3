"""Log a run's numbers to TensorBoard or MLflow too."""

from __future__ import annotations

import importlib
import math
import os
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callback, Record
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.report.groups import flat

SINKS = ("tensorboard", "mlflow")


class Tracking(Callback):
    """Log every round's numbers to TensorBoard or MLflow as well; the run needs a folder."""

    def __init__(self, tracker: Literal["tensorboard", "mlflow"]) -> None:
        if tracker not in SINKS:
            raise FedTailorError(f"There is no tracker '{tracker}'. Known: {', '.join(SINKS)}.")
        self.make = TensorBoard if tracker == "tensorboard" else MLflow
        self.make.check()  # fail before anything has begun

    def on_start(self, simulation: Simulation) -> None:
        if simulation.path is None:
            raise FedTailorError("Tracking writes into a run folder, and this simulation has none: use ft.run.")
        self.sink = self.make(simulation.path)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        self.sink.log(_numbers(record), record["round"] + record.get("step", 0))

    def on_end(self, simulation: Simulation) -> None:
        self.sink.close()


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs` shows them."""

    def __init__(self, folder: Path) -> None:
        self.writer = _needed("tensorboard.summary").Writer(str(folder / "tensorboard"))

    @staticmethod
    def check() -> None:
        _needed("tensorboard.summary")

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment `fedtailor`, at MLFLOW_TRACKING_URI or, if that is not set, in the run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 needs this to write plain files
        self.tracking, self.entities = _needed("mlflow.tracking"), _needed("mlflow.entities")

    @staticmethod
    def check() -> None:
        _needed("mlflow.tracking")

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
        for name, value in flat(read_toml(RunFolder(self.folder).config)).items():
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
