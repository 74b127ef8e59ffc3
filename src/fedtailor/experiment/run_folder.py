"""A run folder: everything about one run, readable during the run, after an interruption, and years later."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import math
import platform
import shutil
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from fedtailor.data.description import Description
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Record
from fedtailor.experiment.checkpoint import Checkpoint, write_tensors
from fedtailor.experiment.config import Config, read_toml
from fedtailor.experiment.draft import DRAFT
from fedtailor.experiment.given import PYTHON, initial_weights
from fedtailor.experiment.journal import Journal, Mark, mark_of, read_marks
from fedtailor.experiment.ledger import HEADER, Ledger
from fedtailor.experiment.legacy_folder import lengths
from fedtailor.experiment.lock import is_locked
from fedtailor.experiment.simulation import Simulation
from fedtailor.extras import can_draw
from fedtailor.files import replace_text as replace_text  # offered here too
from fedtailor.files import replacing
from fedtailor.learning.metrics import CONFUSION, confusion
from fedtailor.learning.scoring import Score
from fedtailor.nets.weights import provenance
from fedtailor.printable import cell
from fedtailor.privacy.sample_dp import EPSILON

log = logging.getLogger("fedtailor")

TABLE = "clients.csv"
GROWING = ("metrics.jsonl", "clients.jsonl", "ledger.csv")
FIXED = ("description.json", "labels.json", "versions.json")  # written once, at the start
HARMLESS = ("engine", "workers", "ray_address", "checkpoint_every", "save_models")  # keys that change no number


class RunFolder:
    """Where a run writes: config.toml, versions.json, status.json, labels.json, metrics.jsonl, clients.jsonl, ledger.csv, models/ …"""

    def __init__(self, path: Path, typed: str = "") -> None:
        """`typed` is the command that is being carried out, to be written down; empty in Python."""
        self.path = path
        self.typed = typed
        self.config = path / "config.toml"
        self.versions = path / "versions.json"
        self.labels = path / "labels.json"
        self.description = path / "description.json"
        self.metrics = path / "metrics.jsonl"
        self.clients = path / "clients.jsonl"
        self.ledger = path / "ledger.csv"
        self.net = path / "net.safetensors"
        self.checkpoints = path / "checkpoints"
        self.models = path / "models"
        self._journals = {name: Journal(path / name) for name in GROWING}

    @classmethod
    def open(cls, path: Path, typed: str = "") -> RunFolder:
        folder = cls(path, typed)
        if not folder.begun:
            raise FedTailorError(
                f"'{path}' is not a run folder: it has no config.toml."
                + (" A run that was to begin in it was cut off: start that again." if (path / DRAFT).exists() else "")
            )
        return folder

    @property
    def begun(self) -> bool:
        """Whether it holds a run."""
        return self.config.is_file()

    # -- at the beginning -------------------------------------------------------------------------------------------------------

    def write_config(self, config: Config) -> None:
        replace_text(self.config, config.to_toml())
        self.status("running", 0)

    def write_versions(self, config: Config) -> None:
        """Write the versions and machine that the run is made with, and the checksum of its config."""
        packages = {name: version(name) for name in ("fedtailor", "torch", "numpy", "safetensors")}
        machine = {"python": platform.python_version(), "platform": platform.platform()}
        weights = getattr(config.net, "weights", "")
        started = {"weights": provenance(weights)} if weights else {}
        digest = {"config_sha256": _digest(self.config)}
        replace_text(self.versions, json.dumps({**packages, **machine, **started, **digest}, indent=1))

    def write_net(self, simulation: Simulation) -> None:
        """Keep the initial weights of a module made in Python, so that any instance of its class can resume the run."""
        module = simulation.worker.modules.architecture
        assert isinstance(module, nn.Module)
        write_tensors(self.net, initial_weights(module))

    def begin(self, simulation: Simulation) -> None:
        """Write what is known before the first round: who holds which labels, and what clients sent the server."""
        simulation.federation.description.write(self.description)
        self.write_labels(simulation.federation)
        for journal in self._journals.values():
            journal.cut(0)
        self._journals["ledger.csv"].append(HEADER)
        self.append_ledger(simulation)

    def mend(self, config: Config, federation: Federation) -> None:
        """Rewrite what is missing of the files that a folder has from its start."""
        shutil.rmtree(self.path / DRAFT, ignore_errors=True)  # empty, or of a start that was killed
        if not _read_json(self.versions):
            log.warning("'%s' was missing or damaged: it is written anew, with the versions of now.", self.versions)
            self.write_versions(config)
        self.check_description(federation.description)
        self.write_labels(federation)

    def check_description(self, description: Description) -> None:
        """Refuse data that is not described as when the run began; write the description anew if it is gone."""
        try:
            known = Description.load(self.description)
        except FedTailorError:
            known = description
        if known != description:
            misfit = known.misfit(description) or "its scaling, values or labels are others"
            raise FedTailorError(
                f"The data is not what the run in '{self.path}' began with: {misfit}. Set the data back, or start a new run."
            )
        there = self.description.exists()
        if there and self.description.read_bytes() == description.text().encode():
            return
        if there:  # a digit beyond the precision of a number changes no value
            log.warning("'%s' was damaged: it is written anew.", self.description)
        description.write(self.description)

    def reopen(self) -> None:
        """Continue the growing files as they are."""
        for journal in self._journals.values():
            journal.reopen()

    # -- what became of it ------------------------------------------------------------------------------------------------------

    def status(self, state: str, round: int) -> None:
        """Write the state of the run; once it is finished, also the checksums by which that can be verified."""
        said: dict[str, Any] = {"state": state, "round": round, "command": self.typed}
        if state == "finished":
            others = {name: mark_of(self.path / name) for name in (TABLE, *FIXED)}
            marks = {**self.marks(), **{name: mark for name, mark in others.items() if mark}}
            said["files"] = {name: asdict(mark) for name, mark in marks.items()}
        replace_text(self.path / "status.json", json.dumps(said))

    @property
    def state(self) -> str:
        """The state of the run: running, interrupted (also by a kill, which writes nothing), failed or finished."""
        said = self._said("state") or "unknown"
        return "interrupted" if said == "running" and not is_locked(self.path) else said

    @property
    def command(self) -> str:
        """What was typed to start the run, or to carry it on; empty if it was done in Python."""
        return self._said("command")

    def _said(self, key: str) -> str:
        return str(_read_json(self.path / "status.json").get(key, ""))

    @property
    def marked(self) -> dict[str, Mark]:
        """The marks of its files when the run was finished; empty if it is not, or if an early version finished it."""
        try:
            return read_marks(_read_json(self.path / "status.json").get("files"))
        except ValueError:
            return {}

    def damage(self) -> str:
        """Return the name of a file that has changed since the run was finished; empty if none has."""
        found = {name: mark_of(self.path / name) for name in self.marked}
        made_anew = () if found.get(TABLE) else (TABLE,)
        return next((name for name, mark in self.marked.items() if name not in made_anew and found[name] != mark), "")

    def missing(self, models: bool) -> bool:
        """Return whether a finished run lacks its table of clients or one of their models, which can be made again."""
        table = self.path / TABLE
        clients = len(table.read_bytes().splitlines()) - 1 if table.exists() else math.inf
        return clients == math.inf or (models and len(list(self.models.glob("client-*"))) < clients)

    def check_config(self) -> None:
        """Refuse a config that has changed since the run began."""
        known = _read_json(self.versions).get("config_sha256")
        if known is not None and known != _digest(self.config):
            raise FedTailorError(
                f"'{self.config}' is not what this run began with: it was edited or damaged. Set it back, or start a new run with it."
            )

    def refuse_other(self, config: Config) -> None:
        """Refuse a folder that holds a run with other settings than these."""
        if other := other_settings(Config.load(self.config), config):
            raise FedTailorError(
                f"'{self.path}' holds a run with other settings ({other}). Choose another --out, move it away, or set them back."
            )

    @property
    def how_to_resume(self) -> str:
        """What to type to carry on the run."""
        kinds = [v.get("name") for v in read_toml(self.config).values() if isinstance(v, dict)]
        return f"ft.load({str(self.path)!r}).resume(…)" if PYTHON in kinds else f"fedtailor run --resume {self.path}"

    def records(self) -> list[Record]:
        return read_lines(self.metrics)

    def append(self, record: Record, simulation: Simulation) -> None:
        """Append one step's metrics, per-client results and ledger entries."""
        self._journals["metrics.jsonl"].append(_json(record))
        logged = {i: o.logged for i, o in simulation.outcomes.items() if o.logged}
        line = {name: record[name] for name in ("round", "phase", "step") if name in record} | {"logged": logged}
        if record["loss"] is not None:
            line |= _client_results(simulation)
        if "loss" in line or logged:
            self._journals["clients.jsonl"].append(_json(line))
        self.append_ledger(simulation)

    def append_ledger(self, simulation: Simulation) -> None:
        rows = [f"{e.round},{e.client},{e.direction},{e.name},{e.bytes}" for e in simulation.ledger.last]
        if rows:
            self._journals["ledger.csv"].append("\n".join(rows))

    def marks(self) -> dict[str, Mark]:
        """Return the marks of the growing files."""
        return {name: journal.mark() for name, journal in self._journals.items()}

    def cut_back(self, checkpoint: Checkpoint) -> str:
        """Truncate what was written after a checkpoint, so that a resumed run writes it again.

        If a file no longer holds what it held then, truncate nothing and return its name; else return an empty string.
        """
        sizes: dict[str, int] | str = {name: mark.bytes for name, mark in checkpoint.files.items()}
        if not sizes:
            sizes = lengths(self.path, checkpoint.round)
        if isinstance(sizes, str):
            return sizes
        for name, mark in checkpoint.files.items():
            if not self._journals[name].holds(mark):
                return name
        for name, size in sizes.items():
            self._journals[name].cut(size)
        return ""

    def restore_ledger(self, ledger: Ledger) -> None:
        ledger.totals.clear()  # what was sent before the first round is in the file too
        with self.ledger.open(newline="") as file:
            for row in csv.DictReader(file):
                direction: Any = row["direction"]
                ledger.totals[int(row["client"]), direction, row["name"]] += int(row["bytes"])

    def write_labels(self, federation: Federation) -> None:
        """Write who holds which labels: names of clients and classes, the training samples of each pair, and a picture."""
        if not federation.at_hand or federation.kind == "regression":
            return
        counts = federation.label_counts.tolist()
        names = [client.name for client in federation.clients]
        text = json.dumps({"clients": names, "labels": federation.labels, "counts": counts})
        if not self.labels.exists() or self.labels.read_bytes() != text.encode():
            if self.labels.exists():
                log.warning("'%s' was damaged, or the data is not what it was: it is written anew.", self.labels)
            replace_text(self.labels, text)
        picture = self.path / "labels.png"
        if not picture.exists() and can_draw():
            with replacing(picture) as draft:
                federation.plot(draft)

    def write_clients(self, simulation: Simulation) -> None:
        """Write one row per client: its samples, its personal model's last evaluation, and its bytes."""
        moved: Counter[tuple[int, str]] = Counter()
        for (client, way, _), count in simulation.ledger.totals.items():
            moved[client, way] += count
        seen = read_lines(self.clients)
        last: Record = next((line for line in reversed(seen) if "loss" in line), {})
        spent = {int(i): told[EPSILON] for line in seen for i, told in line["logged"].items() if EPSILON in told}
        names = [metric.name for metric in simulation.worker.metrics]
        more = f",{EPSILON}" if spent else ""
        lines = [f"client,name,train_samples,test_samples,{','.join(names)},loss,bytes_up,bytes_down{more}"]
        for i, data in enumerate(simulation.federation.clients):
            numbers = [last[key][i] if last else None for key in (*names, "loss")]
            scored = any(number is not None for number in numbers)
            quality = ["nan" if n is None else repr(n) for n in numbers] if scored else [""] * len(numbers)
            name = '"' + cell(data.name).replace('"', '""') + '"'
            samples = (len(data.train), len(data.test) if scored else 0)
            ends = (moved[i, "up"], moved[i, "down"], *([spent.get(i, 0.0)] if spent else []))
            lines.append(",".join(map(str, (i, name, *samples, *quality, *ends))))
        replace_text(self.path / TABLE, "\n".join(lines) + "\n")


def _client_results(simulation: Simulation) -> Record:
    """Return each client's values of the last evaluation by metric, and its confusion matrix if that was asked for."""
    scores = [simulation.scores.get(i, Score()) for i in simulation.everyone]
    found: Record = {m.name: [s.value(m.name) for s in scores] for m in simulation.worker.metrics}
    found["loss"] = [s.loss / s.total if s.total else None for s in scores]
    if CONFUSION in simulation.protocol.metrics:
        task, clients = simulation.federation.task, simulation.federation.clients
        pairs = zip(scores, clients, strict=True)
        found[CONFUSION] = [None if s.outputs is None else confusion(task, c.test.y, s.outputs) for s, c in pairs]
    return found


def read_lines(path: Path) -> list[Record]:
    """Read the complete lines of a jsonl file: skip a last line cut short by a kill, raise FedTailorError at any other damage."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise FedTailorError(
                    f"'{path}' is damaged: its line {number} cannot be read. Resuming a run that is not finished mends it."
                ) from None
    return records


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one if the file is missing or damaged."""
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def other_settings(one: Config, other: Config) -> str:
    """Return up to five keys that affect a run's numbers and differ between two configs; empty if there are none."""
    left, right = (_flat(essential(config.values())) for config in (one, other))
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")


def essential(values: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that do not affect a run's numbers: it may be resumed with another engine or data root.

    Only the stacked engine is essential: it rounds differently.
    """
    values = {k: v for k, v in values.items() if k not in HARMLESS or (k, v) == ("engine", "stacked")}
    if isinstance(values.get("data"), dict):
        values["data"] = {k: v for k, v in values["data"].items() if k != "root"}
    return values


def _digest(config: Path) -> str:
    return hashlib.sha256(json.dumps(essential(read_toml(config)), sort_keys=True).encode()).hexdigest()


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten the tables of a config to dotted keys."""
    tables = {k: v if isinstance(v, dict) else {"": v} for k, v in values.items()}
    return {f"{k}.{name}" if name else k: v for k, table in tables.items() for name, v in table.items()}


def _json(value: Any) -> str:
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
