"""Run folders made of nothing but their files: what a report reads, without the training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from matplotlib.figure import Figure

from fedtailor.experiment.config import Config
from fedtailor.report import pictures

Make = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """make_run("a", "method=fedrep", accuracy=[0.5, 0.7], clients=[0.4, 0.9]) writes a run of two rounds and two clients."""

    def make(
        name: str,
        *words: str,
        accuracy: Any = (0.5, 0.6, 0.7),
        clients: Any = (0.6, 0.7, 0.8),
        state: str = "finished",
        config: dict[str, Any] | None = None,
        labels: Any = ("cat", "dog"),
        names: Any = None,
        size: int = 1000,
        metric: str = "accuracy",
        more: dict[str, Any] | None = None,
        tested: Any = None,
        scores: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        words = ("net=cnn", f"clients={len(clients)}", f"rounds={max(1, len(accuracy))}", *words)
        values = Config.load(None, words).values()
        for part, options in (config or {}).items():
            values[part] |= options
        (folder / "config.toml").write_text(tomli_w.dumps(values))
        status = {"state": state, "round": len(accuracy), "command": "fedtailor run " + " ".join(words)}
        (folder / "status.json").write_text(json.dumps(status))
        records = [_record(t, a, max(accuracy[:t]), clients, size) for t, a in enumerate(accuracy, 1)]
        records = [_renamed(record, metric) | (more or {}) for record in records]
        lines = [
            {"round": t, "phase": "round", "logged": {}, metric: list(clients), **(scores or {})}
            for t in range(1, len(records) + 1)
        ]
        for file, content in (("metrics.jsonl", records), ("clients.jsonl", lines)):
            (folder / file).write_text("".join(json.dumps(line) + "\n" for line in content))
        held = {"clients": names or [f"c{i}" for i in range(len(clients))], "labels": list(labels)}
        counts = [[(i + k) % 3 for k in range(len(labels))] for i in range(len(clients))]
        (folder / "labels.json").write_text(json.dumps(held | {"counts": counts}))
        if tested:
            rows = [
                f'{i},"{name}",{3 * n},{n}' for i, (name, n) in enumerate(zip(held["clients"], tested, strict=True))
            ]
            (folder / "clients.csv").write_text("\n".join(["client,name,train_samples,test_samples", *rows]) + "\n")
        return folder

    return make


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, rendered: None) -> list[Figure]:
    """The figures that were drawn."""
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "Figure", lambda **options: drawn.append(Figure(**options)) or drawn[-1])
    return drawn


def _record(t: int, accuracy: float, best: float, clients: Any, size: int) -> dict[str, Any]:
    values = np.sort(np.array([c for c in clients if c is not None], dtype=float))
    return {
        "round": t,
        "phase": "round",
        "accuracy": accuracy,
        "accuracy_mean": accuracy - 0.01,
        "loss": 1.0,
        "spread": float(values.std()),
        "worst_decile": float(values[0]),
        "best_accuracy": best,
        "best_accuracy_mean": best,
        "best_round": t,
        "bytes_up": size,
        "bytes_down": size,
        "seconds_training": 0.5,
        "seconds_evaluation": 0.25,
        "seconds_communication": 0.25,
    }


def _renamed(record: dict[str, Any], metric: str) -> dict[str, Any]:
    """The record of a run that selects by another metric."""
    if metric == "accuracy":
        return record
    names = {"spread": f"{metric}_std", "worst_decile": f"{metric}_worst_decile"}
    return {names.get(k, k.replace("accuracy", metric)): v for k, v in record.items()} | {"select_by": metric}
