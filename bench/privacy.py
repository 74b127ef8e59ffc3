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
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from fedtailor.experiment.config import Config, overridden
from fedtailor.experiment.run import carry_out
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.files import replace_text
from fedtailor.report.pictures import save
from fedtailor.report.sheets import Sheet, as_markdown

Amount = float | Literal["clip"] | None  # ε; or clipped and sampled as with it, but without noise; or without privacy
AMOUNTS: tuple[Amount, ...] = (1.0, 2.0, 8.0, "clip", None)
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
    """One run: a data set, a method, how much privacy, and a seed."""

    data: str
    method: str
    amount: Amount
    seed: int

    @property
    def folder(self) -> str:
        amount = self.amount or "plain"
        name = amount if isinstance(amount, str) else f"eps{amount:g}"
        return f"{self.data}-{self.method}-{name}-s{self.seed}"

    @property
    def words(self) -> str:
        rules = METHODS[self.method][0]
        much = "noise=0" if self.amount == "clip" else f"epsilon={self.amount or 0:g}"
        private = f"{rules} privacy.{much} privacy.clip={CLIP}" if rules and self.amount else ""
        return " ".join(
            f"method={self.method} data={self.data} seed={self.seed} {COMMON} {OWN.get(self.method, '')} {private}".split()
        )


def cells() -> Iterator[Cell]:
    for seed in SEEDS:
        for data in DATA:
            for method in METHODS:
                for amount in AMOUNTS if METHODS[method][0] else (None,):
                    yield Cell(data, method, amount, seed)


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
        asked = {"data": cell.data, "method": cell.method, "asked": cell.amount, "seed": cell.seed}
        rows.append({**asked, "command": f"fedtailor run {cell.words}", **kept})
    replace_text(target.with_suffix(".json"), json.dumps(rows, indent=1) + "\n")
    _picture(rows, target.with_suffix(".png"))
    replace_text(target, _text(rows, target.with_suffix(".png").name))


def _mean(rows: list[dict[str, Any]], data: str, method: str, amount: Amount, key: str = "accuracy_mean") -> float:
    found = [r[key] for r in rows if (r["data"], r["method"], r["asked"]) == (data, method, amount)]
    return float(np.mean(found)) if found else float("nan")


def _title(amount: Amount) -> str:
    return f"ε = {amount:g}" if isinstance(amount, float) else amount or "plain"


def _text(rows: list[dict[str, Any]], picture: str) -> str:
    parts = [
        "# What privacy costs, and what keeping a part at home buys",
        "Written by `python -m bench.privacy` from the numbers of its runs. 1,000 clients with two classes and some 21 training samples "
        "each, a net with one hidden layer of 16, 20 rounds with 200 clients expected in each. The settings are the same for all methods: "
        f"chosen in pilots so that FedAvg learns without privacy; the clip, {CLIP}, is not tuned. ε is that of clients for the whole run, "
        "with δ = N^−1.1. *Plain* is a run without privacy, in which clients are weighted by samples; *clip* is clipped, averaged and "
        "sampled as with ε, but has no noise, so that one sees what the noise costs. One seed. Accuracy in percent, mean over clients.",
        _losses(rows),
        f"![Accuracy by ε]({picture})",
    ]
    for data, title in DATA.items():
        local = 100 * _mean(rows, data, "local", None)
        header = ("method", "shared", *(_title(amount) for amount in reversed(AMOUNTS)))
        lines = [
            (name, METHODS[name][1], *(f"{100 * _mean(rows, data, name, a):.1f}" for a in reversed(AMOUNTS)))
            for name in METHODS
            if METHODS[name][0]
        ]
        parts += [
            f"## {title}",
            f"Training alone, which spends nothing: {local:.1f} %.",
            as_markdown(Sheet("", header, lines, left=2)).strip(),
        ]
    noises = sorted({(r["asked"], r["noise_multiplier"]) for r in rows if r["noise_multiplier"]})
    told = ", ".join(f"{noise:g} for ε = {epsilon:g}" for epsilon, noise in noises)
    parts += [
        "## How to run one of them",
        f"`{next(r['command'] for r in rows if r['asked'] and r['method'] == 'fedrep')}`",
        f"Noise multipliers that were solved for: {told}. privacy.json has the command and the numbers of every run.",
    ]
    return "\n\n".join(parts) + "\n"


def _losses(rows: list[dict[str, Any]]) -> str:
    """What the smallest ε costs each method: beside its own run without privacy, and beside that without noise."""

    def lost(against: Amount) -> str:
        points = {
            name: [100 * (_mean(rows, data, name, against) - _mean(rows, data, name, AMOUNTS[0])) for data in DATA]
            for name, (rules, _) in METHODS.items()
            if rules
        }
        return ", ".join(f"{name} {' and '.join(f'{p:.1f}' for p in own)}" for name, own in points.items())

    return (
        f"Points lost at {_title(AMOUNTS[0])} against the plain run, on {' and '.join(DATA.values())}: {lost(None)}. Of these by noise "
        f"and not by the clip: {lost('clip')}."
    )


def _picture(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(5.2 * len(DATA), 4.2), layout="constrained")
    axes = figure.subplots(1, len(DATA), squeeze=False)[0]
    places = list(range(len(AMOUNTS)))
    for axis, (data, title) in zip(axes, DATA.items(), strict=True):
        for name in METHODS:
            if METHODS[name][0]:
                axis.plot(places, [100 * _mean(rows, data, name, a) for a in AMOUNTS], marker="o", label=name)
        axis.axhline(100 * _mean(rows, data, "local", None), color="grey", linestyle=":", label="local")
        axis.set_xticks(places, [_title(amount) for amount in AMOUNTS])
        axis.set(title=title, ylabel="accuracy (%), mean over clients")
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
