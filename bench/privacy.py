"""Write docs/results/privacy.md: accuracy at several ε of client-level differential privacy, for methods that share all or keep a part.

    FEDTAILOR_DATA=… python -m bench.privacy run runs/privacy        # some 20 core-minutes; the same command goes on
    python -m bench.privacy page runs/privacy --page docs/results/privacy.md

The page, its picture and privacy.json beside it are made of the runs' own files.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedtailor.experiment.config import Config, overridden
from fedtailor.experiment.run import carry_out
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.files import replace_text
from fedtailor.report.pictures import save
from fedtailor.report.sheets import Sheet, as_markdown

EPSILONS = (1.0, 2.0, 8.0, None)  # None: without privacy
SEEDS = (0,)
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
COMMON = (
    "data.fraction=0.4 clients=1000 partition=pathological partition.balanced=true net=mlp net.hidden=[16] rounds=20 join=0.2 epochs=2 "
    "batch=10 lr=0.05 eval_every=20 engine=inline save_models=false checkpoint_every=0"
)
CLIP = 0.3
METHODS = {  # what a method shares under differential privacy; what else it could send is turned off
    "local": ("", "nothing"),
    "fedavg": ("privacy.model=dp", "the whole model"),
    "fedah": ("privacy.body=dp privacy.head=dp", "body and head, mixed with its own head"),
    "fedrep": ("privacy.body=dp", "the body; the head stays at home"),
    "pgfedsplit": (
        "privacy.body=dp privacy.head=refuse privacy.alpha=refuse privacy.prototypes=refuse privacy.classes=refuse privacy.squares=refuse",
        "the body; head and prototypes stay at home",
    ),
}
OWN = {"pgfedsplit": "method.head_agg=false method.gaussian=false method.proto_reg=false"}


@dataclass(frozen=True)
class Cell:
    """One run: a data set, a method, ε (None: without privacy) and a seed."""

    data: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def folder(self) -> str:
        amount = "plain" if self.epsilon is None else f"eps{self.epsilon:g}"
        return f"{self.data}-{self.method}-{amount}-s{self.seed}"

    @property
    def words(self) -> str:
        rules = METHODS[self.method][0]
        private = f"{rules} privacy.epsilon={self.epsilon:g} privacy.clip={CLIP}" if rules and self.epsilon else ""
        return " ".join(
            f"method={self.method} data={self.data} seed={self.seed} {COMMON} {OWN.get(self.method, '')} {private}".split()
        )


def cells() -> Iterator[Cell]:
    for seed in SEEDS:
        for data in DATA:
            for method in METHODS:
                for epsilon in EPSILONS if METHODS[method][0] else (None,):
                    yield Cell(data, method, epsilon, seed)


def run(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        config = Config.from_values(overridden(None, shlex.split(cell.words)))
        if carry_out(config, folder / cell.folder) is not None:
            print(cell.folder, f"{100 * _last(folder / cell.folder)['accuracy_mean']:.1f} %", flush=True)


def _last(folder: Path) -> dict[str, Any]:
    return next(r for r in reversed(RunFolder(folder).records()) if r["loss"] is not None)


def page(folder: Path, target: Path) -> None:
    rows = []
    for cell in cells():
        last = _last(folder / cell.folder)
        kept = {
            k: last.get(k)
            for k in ("accuracy_mean", "worst_decile", "epsilon", "epsilon_rdp", "noise_multiplier", "delta")
        }
        asked = {"data": cell.data, "method": cell.method, "epsilon_asked": cell.epsilon, "seed": cell.seed}
        rows.append({**asked, "command": f"fedtailor run {cell.words}", **kept})
    replace_text(target.with_suffix(".json"), json.dumps(rows, indent=1) + "\n")
    _picture(rows, target.with_suffix(".png"))
    replace_text(target, _text(rows, target.with_suffix(".png").name))


def _mean(
    rows: list[dict[str, Any]], data: str, method: str, epsilon: float | None, key: str = "accuracy_mean"
) -> float:
    found = [r[key] for r in rows if (r["data"], r["method"], r["epsilon_asked"]) == (data, method, epsilon)]
    return float(np.mean(found)) if found else float("nan")


def _text(rows: list[dict[str, Any]], picture: str) -> str:
    parts = [
        "# What privacy costs, and what keeping a part at home buys",
        "Written by `python -m bench.privacy` from the numbers of its runs. 1,000 clients with two classes and some 21 training samples "
        "each, a net with one hidden layer of 16, 20 rounds with 200 clients expected in each. The settings are the same for all methods: "
        f"chosen in pilots so that FedAvg learns without privacy; the clip, {CLIP}, is not tuned. ε is that of clients for the whole run, "
        "with δ = N^−1.1; ∞ is a run without privacy, in which clients are weighted by samples. One seed. Accuracy in percent, mean over "
        "clients.",
        f"![Accuracy by ε]({picture})",
    ]
    for data, title in DATA.items():
        local = 100 * _mean(rows, data, "local", None)
        header = ("method", "shared", *("∞" if e is None else f"ε = {e:g}" for e in reversed(EPSILONS)))
        lines = [
            (name, METHODS[name][1], *(f"{100 * _mean(rows, data, name, e):.1f}" for e in reversed(EPSILONS)))
            for name in METHODS
            if METHODS[name][0]
        ]
        parts += [
            f"## {title}",
            f"Training alone, which spends nothing: {local:.1f} %.",
            as_markdown(Sheet("", header, lines, left=2)).strip(),
        ]
    noises = sorted({(r["epsilon_asked"], r["noise_multiplier"]) for r in rows if r["noise_multiplier"]})
    told = ", ".join(f"{noise:g} for ε = {epsilon:g}" for epsilon, noise in noises)
    parts += [
        "## How to run one of them",
        f"`{next(r['command'] for r in rows if r['epsilon_asked'] and r['method'] == 'fedrep')}`",
        f"Noise multipliers that were solved for: {told}. privacy.json has the command and the numbers of every run.",
    ]
    return "\n\n".join(parts) + "\n"


def _picture(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(5.2 * len(DATA), 4.2), layout="constrained")
    axes = figure.subplots(1, len(DATA), squeeze=False)[0]
    places = list(range(len(EPSILONS)))
    for axis, (data, title) in zip(axes, DATA.items(), strict=True):
        for name in METHODS:
            if METHODS[name][0]:
                axis.plot(places, [100 * _mean(rows, data, name, e) for e in EPSILONS], marker="o", label=name)
        axis.axhline(100 * _mean(rows, data, "local", None), color="grey", linestyle=":", label="local")
        axis.set_xticks(places, ["∞" if e is None else f"{e:g}" for e in EPSILONS])
        axis.set(title=title, xlabel="ε", ylabel="accuracy (%)")
        axis.legend()
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, default=Path("docs/results/privacy.md"))
    given = parser.parse_args()
    run(given.folder) if given.what == "run" else page(given.folder, given.page)


if __name__ == "__main__":
    main()
