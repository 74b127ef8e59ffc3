"""Log a run's numbers to TensorBoard or MLflow too."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callback, Record
from fedtailor.experiment.config import flat, read_toml
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.extras import extra

Log = Callable[[dict[str, float], int], None]  # a round's numbers and its step


class Tracking(Callback):
    """Log every round's numbers to TensorBoard or MLflow as well; the run needs a folder."""

    def __init__(self, tracker: Literal["tensorboard", "mlflow"]) -> None:
        if tracker not in SINKS:
            raise FedTailorError(f"There is no tracker '{tracker}'. Known: {', '.join(SINKS)}.")
        self.tracker = tracker
        self.open, *modules = SINKS[tracker]
        with extra("track", f"Tracking with {tracker}"):  # fails before anything has begun
            self.modules = [importlib.import_module(name) for name in modules]

    def on_start(self, simulation: Simulation) -> None:
        if simulation.path is None:
            raise FedTailorError("Tracking writes into a run folder, and this simulation has none: use ft.run.")
        self.log, self.close = self.open(simulation.path, *self.modules)

    def on_round(self, simulation: Simulation, record: Record) -> None:
        named = {k: v for k, v in record.items() if k not in ("round", "step") and isinstance(v, int | float)}
        self.log({k: float(v) for k, v in named.items() if math.isfinite(v)}, record["round"] + record.get("step", 0))

    def on_end(self, simulation: Simulation) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Tracking({self.tracker!r})"


def tensorboard(folder: Path, summary: Any) -> tuple[Log, Callable[[], None]]:
    """Write event files into the run folder: `tensorboard --logdir runs` shows them."""
    writer = summary.Writer(str(folder / "tensorboard"))

    def log(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, writer.close


def mlflow(folder: Path, tracking: Any, entities: Any) -> tuple[Log, Callable[[], None]]:
    """Log a run of the experiment `fedtailor`, at MLFLOW_TRACKING_URI or, if that is not set, in the run folder."""
    place = os.environ.get("MLFLOW_TRACKING_URI")
    if not place:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 needs this to write plain files
    client = tracking.MlflowClient(place or (folder / "mlflow").resolve().as_uri())
    known = client.get_experiment_by_name("fedtailor")
    experiment = known.experiment_id if known else client.create_experiment("fedtailor")
    run: str = client.create_run(experiment, run_name=folder.name).info.run_id
    for name, value in flat(read_toml(RunFolder(folder).config)).items():
        client.log_param(run, name, value)

    def log(numbers: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        client.log_batch(run, [entities.Metric(name, value, now, step) for name, value in numbers.items()])

    return log, lambda: client.set_terminated(run)


SINKS: dict[str, Any] = {
    "tensorboard": (tensorboard, "tensorboard.summary"),
    "mlflow": (mlflow, "mlflow.tracking", "mlflow.entities"),
}
