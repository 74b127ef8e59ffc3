"""Write docs/results/natural.md: every method that fits on data whose clients are real, against each client training alone.

    FEDTAILOR_DATA=… python -m bench.natural runs/natural --page docs/results/natural.md
    FEDTAILOR_DATA=… python -m bench.natural runs/natural har                              # only one of the data sets

Data: UCI HAR (30 people), Lending Club (50 states) and A-level chemistry of 1997 (131 education authorities). The numbers of each run are
written to a file of their own below the folder that is given, so the same command goes on after an interruption. All are collected in
natural.json there, and the page is made of that file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.task import Kind
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import simulation_of
from fedtailor.experiment.simulation import Simulation
from fedtailor.files import replace_text
from fedtailor.learning.metrics import metric
from fedtailor.methods import methods

ROUNDS = 10
LOCAL = "local"
COMMON = f"net=mlp net.hidden=[32] rounds={ROUNDS} epochs=1 batch=64 lr=0.1 eval_every={ROUNDS} engine=inline"
FILE = "natural.json"
DIVERGED = 1e6  # an error beyond any target

RunNumbers = dict[str, Any]  # the mean over clients, the pooled value, and each client's
Numbers = dict[str, list[RunNumbers]]  # of each method, one per seed


@dataclass(frozen=True)
class Study:
    """A data set, what its clients are, and the metric that its task is measured by."""

    title: str
    clients: str
    metric: str
    words: str
    note: str = ""

    @property
    def command(self) -> str:
        return f"{self.words} metrics={self.metric} select_by={self.metric} {COMMON}"

    def config(self, *words: str) -> Config:
        return Config.load(words=[*self.command.split(), *words])


STUDIES = {
    "har": Study(
        "UCI HAR: six activities from phone sensors",
        "people",
        "accuracy",
        "data=har",
        "PGFedSplit diverges at this learning rate (the guard leaves replies out); at lr=0.05 it does not.",
    ),
    "lending_club": Study(
        "Lending Club: loans that turn out bad",
        "states",
        "auroc",
        "data=table data.path=natural/lending_club.csv data.client=addr_state data.label=Class data.task=binary",
    ),
    "chem97": Study(
        "A-level chemistry of 1997: the score, from gender, age and earlier marks",
        "education authorities",
        "rmse",
        "data=table data.path=natural/chem97.csv data.client=lea data.label=score data.task=regression "
        "data.features=gender,age,gcsescore",
        "At lr=0.02 they do not. Targets are not scaled.",
    ),
}


def able(kind: Kind) -> list[str]:
    """Name the methods that can do a task and need no samples at the server, which would be taken from the clients."""
    fits = (name for name, cls in methods.classes.items() if kind in cls.tasks and not cls().needs_proxy)
    return sorted(fits, key=lambda name: (name != LOCAL, name))


def measure(study: Study, out: Path, seeds: int) -> Numbers:
    """Carry out the runs that are missing, and return the numbers of all."""
    found: Numbers = {}
    out.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        federation = study.config(f"seed={seed}").federation()  # the same for all methods
        for name in able(federation.kind):
            file = out / f"{name}-s{seed}.json"
            if not file.exists():
                print(file.stem, flush=True)
                config = study.config(f"method={name}", f"seed={seed}")
                replace_text(file, json.dumps(numbers_of(study.metric, simulation_of(config, federation))))
            found.setdefault(name, []).append(json.loads(file.read_text()))
    return found


def numbers_of(metric: str, simulation: Simulation) -> RunNumbers:
    """Run a simulation; return the last value of a metric, as mean over clients, pooled over samples, and of each client."""
    with simulation:
        last = simulation.run().metrics[-1]
        clients = [simulation.scores[i].value(metric) for i in simulation.everyone]
    return {"mean": last[f"{metric}_mean"], "pooled": last[metric], "clients": clients}


def by_client(runs: Sequence[RunNumbers]) -> np.ndarray:
    """Return each client's mean over the seeds in which its value is defined, NaN if it never is."""
    each = np.array([run["clients"] for run in runs], float)
    defined = np.isfinite(each)
    total = np.where(defined, each, 0.0).sum(0)
    return np.where(defined.any(0), total / defined.sum(0).clip(1), np.nan)


def section(study: Study, found: Numbers) -> Iterable[str]:
    yield f"\n## {study.title}\n"
    lower, seeds = metric(study.metric).lower_is_better, len(found[LOCAL])
    alone = by_client(found[LOCAL])
    counted = np.isfinite(alone)
    yield f"`fedtailor compare METHODS --seeds {','.join(map(str, range(seeds)))} {study.command}`\n"
    best = "lowest" if lower else "highest"
    yield (
        f"{counted.sum()} {study.clients}{'' if counted.all() else f' of {len(alone)} where the metric is defined'}; {study.metric}, "
        f"mean ± standard deviation of {seeds} seeds, {best} mean over {study.clients} first.\n"
    )
    yield f"| method | mean over {study.clients} | pooled over samples | gain over alone | worse off than alone |"
    yield "|---|---:|---:|---:|---:|"
    sign = -1 if lower else 1
    gains = {}
    for name in sorted(found, key=lambda name: -sign * _mean(found[name])):
        gains[name] = sign * (_mean(found[name]) - _mean(found[LOCAL])) + 0.0  # no -0
        worse = int((sign * (by_client(found[name]) - alone)[counted] < -1e-9).sum())
        spreads = (_spread([run[what] for run in found[name]], study) for what in ("mean", "pooled"))
        yield f"| {name} | {' | '.join(spreads)} | {_shown(gains[name], study, '+')} | {worse} |"
    ahead = [name for name, gain in gains.items() if gain > 0]
    first = max(gains, key=lambda name: gains[name])
    told = f"{len(ahead)} of {len(found) - 1} methods are better than training alone in the mean over {study.clients}; the best is {first}."
    lost = [name for name in found if abs(_mean(found[name])) >= DIVERGED]
    diverged = f"Diverged at this learning rate: {', '.join(lost)}." if lost else ""
    yield "\n" + " ".join(filter(None, (told, diverged, study.note)))


def _mean(runs: Sequence[RunNumbers]) -> float:
    return float(np.mean([run["mean"] for run in runs]))


def _spread(values: Sequence[float], study: Study) -> str:
    if abs(np.mean(values)) >= DIVERGED:
        return "diverged"
    return f"{_shown(float(np.mean(values)), study)} ± {_shown(float(np.std(values)), study)}"


def _shown(value: float, study: Study, sign: str = "") -> str:
    if abs(value) >= DIVERGED:
        return "diverged"
    return f"{100 * value:{sign}.2f}" if study.metric == "accuracy" else f"{value:{sign}.4f}"


def page(numbers: dict[str, Numbers]) -> str:
    about = [
        "# Data whose clients are real",
        "",
        f"Written by `python -m bench.natural` from the numbers of its runs. A small net (one hidden layer of 32) and {ROUNDS} rounds of",
        "one epoch: few, so that all of it takes minutes. Nothing is tuned. The clients are those of the data; a random quarter of each",
        "client's samples is its test part, drawn anew for each seed and the same for all methods. Gain is the difference of means over",
        "clients. Worse off are clients whose mean over seeds is worse than that of training alone (`local`). Methods that need samples",
        "at the server are left out. Methods that fine-tune train for 10 or 25 more epochs after the last round.",
    ]
    return "\n".join([*about, *(line for name, found in numbers.items() for line in section(STUDIES[name], found)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("studies", nargs="*", help=f"some of {', '.join(STUDIES)} (none: all)")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on (default: 5)")
    parser.add_argument("--page", type=Path, default=Path("docs/results/natural.md"))
    asked = parser.parse_args()
    unknown = set(asked.studies) - set(STUDIES)
    if unknown:
        parser.error(f"there is no data set {', '.join(unknown)}: there are {', '.join(STUDIES)}")
    file = asked.out / FILE
    numbers = json.loads(file.read_text()) if file.exists() else {}
    for name in asked.studies or STUDIES:
        numbers[name] = measure(STUDIES[name], asked.out / name, asked.seeds)
        replace_text(file, json.dumps(numbers))
    replace_text(asked.page, page(json.loads(file.read_text())))
    print(f"Wrote {asked.page}.")


if __name__ == "__main__":
    main()
