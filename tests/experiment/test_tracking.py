"""What TensorBoard and MLflow are given is what the run folder holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedtailor import Config, FedTailorError, Tracking
from fedtailor.analysis.results import read_result
from fedtailor.api.run import Run

WORDS = [
    "data=digits",
    "data.fraction=0.1",
    "clients=3",
    "partition=iid",
    "net=mlp",
    "net.hidden=[4]",
    "rounds=2",
]


def run(folder: Path, tracker: str) -> list[float]:
    """A run's accuracies as its own folder has them."""
    Run(folder).carry_out(Config.load(words=[*WORDS, "save_models=false"]), [Tracking(tracker)])
    return [r["accuracy"] for r in read_result(folder).records]


def test_tensorboard(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    told = run(tmp_path / "a", "tensorboard")
    events = reader.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    series = events.Tensors("accuracy")
    assert [e.step for e in series] == [1, 2]
    assert [e.tensor_proto.float_val[0] for e in series] == pytest.approx(told)


def test_mlflow(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking", reason="needs mlflow-skinny")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    told = run(tmp_path / "a", "mlflow")
    client = tracking.MlflowClient((tmp_path / "a" / "mlflow").as_uri())
    (logged,) = client.search_runs([client.get_experiment_by_name("fedtailor").experiment_id])
    assert [m.value for m in client.get_metric_history(logged.info.run_id, "accuracy")] == pytest.approx(told)
    assert (logged.data.params["method"], logged.data.params["rounds"]) == ("fedrep", "2")
    assert (logged.info.run_name, logged.info.status) == ("a", "FINISHED")


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_a_missing_package_is_told_before_anything_runs(tmp_path, monkeypatch, tracker):
    for module in ("tensorboard.summary", "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        FedTailorError, match=rf"Tracking with {tracker} needs {tracker}, .*pip install 'fedtailor\[track\]'"
    ):
        run(tmp_path / "a", tracker)
    assert not (tmp_path / "a").exists()
