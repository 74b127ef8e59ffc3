"""A finished (or interrupted) run as tables and pictures need it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import read_toml
from fedtailor.experiment.folder import RunFolder, read_lines


@dataclass(frozen=True)
class Result:
    """One run, read back from its folder."""

    path: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    clients: np.ndarray  # last accuracy of each client, NaN where there is none
    state: str
    lines: list[dict[str, Any]]  # of clients.jsonl: what the clients scored and logged

    @property
    def method(self) -> str:
        return Path(self.config["method"]["name"]).stem

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def last(self) -> dict[str, Any]:
        return self.evaluated[-1]

    @property
    def evaluated(self) -> list[dict[str, Any]]:
        return [r for r in self.records if r["accuracy"] is not None]

    @property
    def bytes_per_round(self) -> float:
        rounds = [r for r in self.records if r["phase"] == "round"]
        return sum(r["bytes_up"] + r["bytes_down"] for r in rounds) / len(rounds)

    @property
    def seconds(self) -> float:
        return sum(v for r in self.records for k, v in r.items() if k.startswith("seconds_"))

    @property
    def curve(self) -> tuple[list[int], list[float]]:
        """Steps (rounds, then closing steps) and the clients' mean accuracy at each."""
        steps = [r["round"] + r.get("step", 0) for r in self.evaluated]
        return steps, [r["accuracy_mean"] for r in self.evaluated]


def read_result(path: Path) -> Result:
    """Read a run folder, whatever state it was left in."""
    folder = RunFolder.open(path)
    lines = read_lines(folder.clients)
    last: list[float | None] = next((line["accuracy"] for line in reversed(lines) if "accuracy" in line), [])
    clients = np.array([np.nan if a is None else a for a in last], dtype=float)
    result = Result(path, read_toml(folder.config), read_lines(folder.metrics), clients, folder.state, lines)
    if not result.evaluated:
        raise FedTailorError(f"'{path}' has no finished round yet (state: {folder.state}).")
    return result


def read_results(path: Path) -> list[Result]:
    """The run in a folder, or all runs of a comparison."""
    if (path / "config.toml").is_file():
        return [read_result(path)]
    runs = sorted(p.parent for p in path.glob("*/config.toml"))
    if not runs:
        raise FedTailorError(f"'{path}' holds no run: neither it nor a folder in it has a config.toml.")
    return [read_result(run) for run in runs]
