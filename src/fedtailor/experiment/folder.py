"""A run folder: everything about one run, readable while it goes on, after an interruption, and years later."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.experiment.ledger import Ledger
from fedtailor.experiment.simulation import Record, Simulation
from fedtailor.learning.scoring import Score
from fedtailor.nets.weights import provenance
from fedtailor.printable import cell


class RunFolder:
    """Where a run writes: config.toml, versions.json, status.json, labels.json, metrics.jsonl, clients.jsonl, ledger.csv, models/ …"""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.labels = path / "labels.json"
        self.metrics = path / "metrics.jsonl"
        self.clients = path / "clients.jsonl"
        self.ledger = path / "ledger.csv"
        self.checkpoints = path / "checkpoints"
        self.models = path / "models"

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedTailorError(
                f"'{path}' is not empty. Choose another --out, or carry on the run in it with:  fedtailor run --resume {path}"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        replace_text(folder.config, config.to_toml())
        packages = {name: version(name) for name in ("fedtailor", "torch", "numpy", "safetensors")}
        machine = {"python": platform.python_version(), "platform": platform.platform()}
        weights = getattr(config.net, "weights", "")
        started = {"weights": provenance(weights)} if weights else {}
        replace_text(path / "versions.json", json.dumps({**packages, **machine, **started}, indent=1))
        folder.ledger.write_text("round,client,direction,name,bytes\n")
        folder.metrics.touch()
        folder.clients.touch()
        folder.status("running", 0)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path)
        if not folder.config.is_file():
            raise FedTailorError(f"'{path}' is not a run folder: it has no config.toml.")
        return folder

    def status(self, state: str, round: int) -> None:
        command = " ".join(["fedtailor", *sys.argv[1:]])
        replace_text(self.path / "status.json", json.dumps({"state": state, "round": round, "command": command}))

    @property
    def state(self) -> str:
        """running, interrupted, failed or finished, as it was last said."""
        return self._said("state") or "unknown"

    @property
    def command(self) -> str:
        """What was typed to start the run, or to carry it on; empty if nobody knows."""
        return self._said("command")

    def _said(self, key: str) -> str:
        try:
            return str(json.loads((self.path / "status.json").read_text())[key])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def records(self) -> list[Record]:
        return read_lines(self.metrics)

    def append(self, record: Record, simulation: Simulation) -> None:
        """Add one step's metrics, per-client results and ledger entries."""
        _append(self.metrics, _json(record))
        outcomes = simulation.outcomes.items() if record["phase"] == "round" else ()
        logged = {i: o.logged for i, o in outcomes if o.logged}
        line = {"round": record["round"], "phase": record["phase"], "logged": logged}
        if record["accuracy"] is not None:
            scores = [simulation.scores.get(i, Score()) for i in simulation.everyone]
            line["accuracy"] = [s.accuracy for s in scores]
            line["loss"] = [s.loss / s.total if s.total else None for s in scores]
        if "accuracy" in line or logged:
            _append(self.clients, _json(line))
        self.append_ledger(simulation)

    def append_ledger(self, simulation: Simulation) -> None:
        rows = (f"{e.round},{e.client},{e.direction},{e.name},{e.bytes}" for e in simulation.ledger.last)
        _append(self.ledger, "\n".join(rows))

    def cut_back(self, round: int) -> None:
        """Forget what was written after a round, so that a resumed run writes it anew."""

        def kept(record: Record) -> bool:
            return bool(record["round"] <= round and record["phase"] == "round")

        for path in (self.metrics, self.clients):
            replace_text(path, "".join(_json(r) + "\n" for r in read_lines(path) if kept(r)))
        header, *rows = self.ledger.read_text().splitlines() or [""]
        whole = [row for row in rows if row.count(",") == 4 and int(row.split(",")[0]) <= round]
        replace_text(self.ledger, "".join(row + "\n" for row in (header, *whole)))

    def restore_ledger(self, ledger: Ledger) -> None:
        ledger.totals.clear()  # what was told before the first round is in the file too
        with self.ledger.open(newline="") as file:
            for row in csv.DictReader(file):
                direction: Any = row["direction"]
                ledger.totals[int(row["client"]), direction, row["name"]] += int(row["bytes"])

    def write_labels(self, federation: Federation) -> None:
        """Who holds which labels: names of clients and classes, and the training samples of each pair."""
        counts = federation.label_counts.tolist()
        names = [client.name for client in federation.clients]
        replace_text(self.labels, json.dumps({"clients": names, "labels": federation.labels, "counts": counts}))

    def write_clients(self, simulation: Simulation) -> None:
        """One row a client: its samples, how its personal model does, what travelled."""
        moved = simulation.ledger.totals
        lines = ["client,name,train_samples,test_samples,accuracy,loss,bytes_up,bytes_down"]
        for i, data in enumerate(simulation.federation.clients):
            s = simulation.scores.get(i, Score())
            sums = [sum(b for (c, d, _), b in moved.items() if c == i and d == way) for way in ("up", "down")]
            quality = (f"{s.accuracy!r}", f"{s.loss / s.total!r}") if s.total else ("", "")
            name = '"' + cell(data.name).replace('"', '""') + '"'
            lines.append(",".join(map(str, (i, name, len(data.train), s.total, *quality, *sums))))
        replace_text(self.path / "clients.csv", "\n".join(lines) + "\n")


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a jsonl file: a last line cut short by a kill is left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _append(path: Path, text: str) -> None:
    if text:
        with path.open("a") as file:
            file.write(text + "\n")


def _json(value: Any) -> str:
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    """JSON knows no NaN: it becomes null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
