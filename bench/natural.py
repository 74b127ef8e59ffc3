"""Write docs/results/natural.md: every method that fits on data whose clients are real, against each client training alone.

    FEDTAILOR_DATA=… python -m bench.natural runs/natural --page docs/results/natural.md
    FEDTAILOR_DATA=… python -m bench.natural runs/natural har                              # only one of the data sets

Data: UCI HAR (30 people), Lending Club (50 states) and A-level chemistry of 1997 (131 education authorities). Each run is an ordinary run
folder below the one that is given, so the same command goes on after an interruption. The numbers are written to natural.json there, and
the page is made of that file.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.task import Kind
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import carry_out, simulation_of
from fedtailor.experiment.run_folder import TABLE, RunFolder
from fedtailor.files import replace_text
from fedtailor.learning.metrics import metric
from fedtailor.methods import methods

SEEDS = range(5)
ROUNDS = 10
LOCAL = "local"
COMMON = f"net=mlp net.hidden=[32] rounds={ROUNDS} epochs=1 batch=32 lr=0.05 eval_every={ROUNDS} engine=inline save_models=false"
FILE = "natural.json"

Numbers = dict[
    str, dict[str, Any]
]  # of a method: its mean and pooled value of each seed, and each client's mean over seeds


@dataclass(frozen=True)
class Study:
    """A data set, what its clients are, and the metric that its task is measured by."""

    title: str
    clients: str
    metric: str
    words: str

    @property
    def command(self) -> str:
        return f"{self.words} metrics={self.metric} select_by={self.metric} {COMMON}"

    def config(self, *words: str) -> Config:
        return Config.load(words=[*self.command.split(), *words])


STUDIES = {
    "har": Study("UCI HAR: six activities from phone sensors", "people", "accuracy", "data=har"),
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
    ),
}


def able(kind: Kind) -> list[str]:
    """Name the methods that can do a task and need no samples at the server, which would be taken from the clients."""
    fits = (name for name, cls in methods.classes.items() if kind in cls.tasks and not cls().needs_proxy)
    return sorted(fits, key=lambda name: (name != LOCAL, name))


def measure(study: Study, out: Path) -> Numbers:
    """Carry out the runs that are missing, and collect the numbers of all."""
    folders: dict[str, list[RunFolder]] = {}
    for seed in SEEDS:
        federation = study.config(f"seed={seed}").federation()  # read once: the same for all methods
        for name in able(federation.kind):
            folder = RunFolder(out / f"{name}-s{seed}")
            if not (folder.begun and folder.state == "finished"):
                print(folder.path, flush=True)
                config = study.config(f"method={name}", f"seed={seed}")
                carry_out(config, folder.path, build=partial(simulation_of, federation=federation))
            folders.setdefault(name, []).append(folder)
    return {name: _collected(study.metric, own) for name, own in folders.items()}


def _collected(name: str, folders: Sequence[RunFolder]) -> dict[str, Any]:
    last = [next(r for r in reversed(folder.records()) if r[name] is not None) for folder in folders]
    clients = []
    for folder in folders:
        with (folder.path / TABLE).open() as file:
            clients.append([float(row[name]) for row in csv.DictReader(file)])
    with np.errstate(all="ignore"):
        each = np.array(clients)
        counted = np.isfinite(each).any(0)
        by_client = np.where(counted, np.nansum(each, 0) / np.isfinite(each).sum(0).clip(1), np.nan)
    mean = [record[f"{name}_mean"] for record in last]
    return {"mean": mean, "pooled": [record[name] for record in last], "clients": by_client.tolist()}


def section(study: Study, found: Numbers) -> Iterable[str]:
    yield f"\n## {study.title}\n"
    lower = metric(study.metric).lower_is_better
    alone = np.array(found[LOCAL]["clients"])
    counted = np.isfinite(alone)
    yield f"`fedtailor compare METHODS --seeds 0,1,2,3,4 {study.command}`\n"
    best = "lowest" if lower else "highest"
    yield (
        f"{counted.sum()} {study.clients}{'' if counted.all() else f' of {len(alone)} where the metric is defined'}; {study.metric}, "
        f"mean ± standard deviation of {len(SEEDS)} seeds, {best} mean over {study.clients} first.\n"
    )
    yield f"| method | mean over {study.clients} | pooled over samples | gain over alone | worse off than alone |"
    yield "|---|---:|---:|---:|---:|"
    sign = -1 if lower else 1
    gains = {}
    for name in sorted(found, key=lambda n: -sign * float(np.mean(found[n]["mean"]))):
        own = found[name]
        gains[name] = sign * (float(np.mean(own["mean"])) - float(np.mean(found[LOCAL]["mean"])))
        worse = int((sign * (np.array(own["clients"]) - alone)[counted] < -1e-9).sum())
        numbers = f"{_spread(own['mean'], study)} | {_spread(own['pooled'], study)} | {_shown(gains[name], study, '+')}"
        yield f"| {name} | {numbers} | {worse} |"
    ahead = [name for name, gain in gains.items() if gain > 0]
    first = max(gains, key=lambda name: gains[name])
    yield (
        f"\n{len(ahead)} of {len(found) - 1} methods are better than training alone in the mean over {study.clients}; the best is {first}."
    )


def _spread(values: Sequence[float], study: Study) -> str:
    return f"{_shown(float(np.mean(values)), study)} ± {_shown(float(np.std(values)), study)}"


def _shown(value: float, study: Study, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}" if study.metric == "accuracy" else f"{value:{sign}.4f}"


def page(numbers: dict[str, Numbers]) -> str:
    about = [
        "# Data whose clients are real",
        "",
        f"Written by `python -m bench.natural` from the numbers of its runs. A small net (one hidden layer of 32) and {ROUNDS} rounds of",
        "one epoch: few, so that all of it takes minutes. Nothing is tuned. The clients are those of the data; a random quarter of each",
        "client's samples is its test part, drawn anew for each seed and the same for all methods. Gain is the difference of means over",
        "clients. Worse off are clients whose mean over seeds is worse than that of training alone (`local`). Methods that need samples",
        "at the server are left out.",
    ]
    return "\n".join([*about, *(line for name, found in numbers.items() for line in section(STUDIES[name], found)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("studies", nargs="*", help=f"some of {', '.join(STUDIES)} (none: all)")
    parser.add_argument("--page", type=Path, default=Path("docs/results/natural.md"))
    asked = parser.parse_args()
    unknown = set(asked.studies) - set(STUDIES)
    if unknown:
        parser.error(f"there is no data set {', '.join(unknown)}: there are {', '.join(STUDIES)}")
    file = asked.out / FILE
    numbers = json.loads(file.read_text()) if file.exists() else {}
    for name in asked.studies or STUDIES:
        numbers[name] = measure(STUDIES[name], asked.out / name)
        replace_text(file, json.dumps(numbers))
    replace_text(asked.page, page(json.loads(file.read_text())))
    print(f"Wrote {asked.page}.")


if __name__ == "__main__":
    main()
