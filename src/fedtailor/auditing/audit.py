"""An audit: the measurements made of a run, those that do not apply, and those there was no time for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.auditing.finding import Finding
from fedtailor.auditing.inversion import Reconstruction
from fedtailor.auditing.measurements import Measured, units
from fedtailor.auditing.subject import Subject
from fedtailor.files import replace_text
from fedtailor.privacy.client_dp import ClientDP
from fedtailor.privacy.sample_dp import Budget

FILE = "audit.json"
FORMAT = 1  # raised when a measurement changes, so that old numbers are not taken for new ones
MINUTES = 5.0

OnUnit = Callable[
    [str, Measured | None], object
]  # called with the name of a measurement when it begins (None), and with what it found when it ends


@dataclass
class Audit:
    """What leaked from a run, by attack and by name of what travels."""

    path: Path
    about: dict[str, Any]  # the run: its method, its rounds, its rules
    done: dict[str, Measured] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # measurements for which the time was too short

    @property
    def findings(self) -> list[Finding]:
        return [measured.finding for measured in self.done.values() if measured.finding is not None]

    @property
    def reconstructions(self) -> list[Reconstruction]:
        """Pairs of a true sample and its reconstruction, the best of each measurement."""
        return [pair for measured in self.done.values() for pair in measured.reconstructions]

    @property
    def untouched(self) -> list[str]:
        """The entries that leave a client and that no attack here knows how to use."""
        tried = {finding.entry for finding in self.findings}
        return [entry for entry in self.about["up"] if entry not in tried]

    def write(self) -> None:
        """Write what was measured, from which a later call goes on."""
        measured = {name: asdict(found) for name, found in self.done.items()}
        replace_text(
            self.path / FILE, json.dumps(_plain({"format": FORMAT, "about": self.about, "measured": measured}))
        )

    @classmethod
    def read(cls, path: Path, about: dict[str, Any]) -> Audit:
        """Read what was measured of this run before; an empty audit if there is nothing, or it is of another run."""
        audit = cls(path, about)
        try:
            read = json.loads((path / FILE).read_bytes())
            if read["format"] == FORMAT and read["about"] == _plain(about):
                audit.done = {name: _measured(found) for name, found in read["measured"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return audit

    def __repr__(self) -> str:
        worst = sum(finding.leaks for finding in self.findings)
        return f"Audit of '{self.path}': {len(self.findings)} measurements, {worst} better than chance, {len(self.left)} left"


def carry_out(subject: Subject, audit: Audit, minutes: float = MINUTES, on_unit: OnUnit | None = None) -> Audit:
    """Make the measurements that an audit lacks, for about so many minutes, and write it after each. At least one is made."""
    until = time.monotonic() + 60 * minutes
    missing = [unit for unit in units(subject) if unit.name not in audit.done]
    audit.left = [unit.name for unit in missing]
    for place, unit in enumerate(missing):
        if place and time.monotonic() + unit.seconds > until:
            continue
        if on_unit is not None:
            on_unit(unit.name, None)
        audit.done[unit.name] = unit.measure(until)
        audit.left.remove(unit.name)
        audit.write()
        if on_unit is not None:
            on_unit(unit.name, audit.done[unit.name])
    return audit


def about(subject: Subject, run: str) -> dict[str, Any]:
    """Describe the audited run; `run` is a checksum that identifies it."""
    simulation = subject.simulation
    noised = () if subject.dp is None else subject.dp.names
    return {
        "method": subject.method.name,
        "up": list(subject.method.up),
        "keeps": list(subject.method.keeps),
        "clients": len(subject.federation.clients),
        "round": simulation.round,
        "batch": subject.protocol.batch,
        "task": subject.task.kind,
        "privacy": None if subject.dp is None else _promise(subject, subject.dp),
        "samples": _sample_promise(simulation.worker.budgets.values()),
        "uncovered": [name for view in subject.views if not view.noise for name in view.entries if name not in noised],
        "personal": subject.personal is not None,
        "run": run,
    }


def _promise(subject: Subject, dp: ClientDP) -> dict[str, Any]:
    """The differential privacy of clients that a run claims."""
    spent = dp.amount.spent(subject.simulation.round)
    summed = subject.simulation.sums is not None and dp.names[0] in subject.simulation.sums.entries.names
    return {
        "entries": list(dp.names),
        "epsilon": spent.get("epsilon"),
        "delta": spent.get("delta"),
        "in_secure_sum": summed,
    }


def _sample_promise(budgets: Collection[Budget]) -> dict[str, float] | None:
    """The differential privacy of samples that a run claims: that of the client with the largest ε."""
    if not budgets:
        return None
    most = max(budgets, key=lambda own: own.epsilon)
    return {"epsilon": most.epsilon, "delta": most.delta}


def _measured(read: dict[str, Any]) -> Measured:
    pairs = [
        Reconstruction(**{**pair, "true": np.array(pair["true"]), "found": np.array(pair["found"])})
        for pair in read["reconstructions"]
    ]
    return Measured(None if read["finding"] is None else Finding(**read["finding"]), pairs)


def _plain(value: Any) -> Any:
    """Convert to JSON values: lists for arrays and tuples, three digits for samples."""
    match value:
        case np.ndarray():
            return value.round(3).tolist()
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case np.generic():
            return value.item()
    return value
