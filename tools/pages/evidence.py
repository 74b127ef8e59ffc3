"""What was measured about a method, read from the pages and files in docs/results that the benchmarks write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SECTION = re.compile(r"^## (?P<title>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
METRIC = re.compile(r"; (?P<metric>\w+), mean ± standard deviation")
ROW = re.compile(r"^\| (?P<name>[\w-]+) \|(?P<cells>(?: [^|]* \|){4})$", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """How one method did on one data set: `gain` over training alone, positive if better; None if it diverged."""

    data: str
    metric: str
    rank: int
    methods: int
    value: str
    gain: float | None
    worse_off: str

    @property
    def helped(self) -> bool:
        return self.gain is not None and self.gain > 0


def natural(page: Path = RESULTS / "natural.md") -> dict[str, list[Place]]:
    """Return each method's places on the natural federations, from the tables of bench.natural, which list the best first."""
    found: dict[str, list[Place]] = {}
    for section in SECTION.finditer(page.read_text() if page.exists() else ""):
        metric = METRIC.search(section["text"])
        rows = [row for row in ROW.finditer(section["text"]) if row["name"] != "method"]
        for rank, row in enumerate(rows, start=1):
            mean, _, gain, worse = (cell.strip() for cell in row["cells"].split("|")[:4])
            known = None if gain == "diverged" else float(gain)
            place = Place(section["title"], metric["metric"] if metric else "", rank, len(rows), mean, known, worse)
            found.setdefault(row["name"], []).append(place)
    return found


def judged(file: Path = RESULTS / "judge.json") -> dict[str, list[tuple[str, int, int, float, float | None]]]:
    """Return each method's places among tuned methods, from bench.judge: setting, rank, methods, mean over clients, gain over alone."""
    found: dict[str, list[tuple[str, int, int, float, float | None]]] = {}
    if not file.exists():
        return found
    from bench.judge import SETTINGS

    for name, methods in json.loads(file.read_text()).items():
        means = {m: float(np.mean([_mean(run["clients"]) for run in own["runs"]])) for m, own in methods.items()}
        order = sorted(means, key=lambda m: -means[m])
        title = SETTINGS[name].title if name in SETTINGS else name
        for rank, method in enumerate(order, start=1):
            gain = means[method] - means["local"] if "local" in means else None
            found.setdefault(method, []).append((title, rank, len(order), means[method], gain))
    return found


def claimed(file: Path = RESULTS / "evidence.json") -> dict[str, list[tuple[str, str, str]]]:
    """Return the claims of each paper's method that were tested, from `fedtailor claims`: what is claimed, the protocol, the verdict."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    evidence = json.loads(file.read_text()) if file.exists() else {"claims": []}
    for claim in evidence["claims"]:
        if any(comparison["lead"] is not None for comparison in claim["comparisons"]):
            protocol = evidence["protocols"][claim["protocol"]]["title"]
            found.setdefault(claim["paper"], []).append((claim["says"], protocol, claim["verdict"]))
    return found


def _mean(clients: list[float | None]) -> float:
    return float(np.mean([value for value in clients if value is not None]))
