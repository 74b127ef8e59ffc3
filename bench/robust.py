"""Write docs/results/robust.md: how clients that do not attack fare, by method, robust mean and share of attackers.

    python -m bench.robust run docs/results/robust.json     # goes on where it was interrupted
    python -m bench.robust page docs/results/robust.json --page docs/results/robust.md

Every run is `fedtailor run` with the words that robust.json has it under. The page shows what is there; runs that are missing are dashes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run import simulation_of
from fedtailor.files import replace_text
from fedtailor.report.charts import Chart, Series
from fedtailor.report.pictures import panels, save
from fedtailor.report.sheets import Best, Sheet, as_markdown

METHODS = ("fedavg", "ditto", "fedrep", "pgfedsplit")
RULES = {
    "plain mean": "",
    "norm bound": "robust=norm-bound",
    "median": "robust=median",
    "trimmed 0.2": "robust=trimmed robust.share=0.2",
    "trimmed 0.4": "robust=trimmed robust.share=0.4",
    "geometric median": "robust=geometric-median",
    "Krum": "robust=krum",
    "multi-Krum": "robust=multi-krum",
}
UPDATE, LABELS, BACKDOOR = "an update times −10", "flipped labels", "a backdoor"
ATTACKS = {
    UPDATE: "attack=sign-flip attack.factor=10",
    LABELS: "attack=label-flip",
    BACKDOOR: "attack=backdoor attack.factor=4 attack.size=2",
}
SHARES = {UPDATE: (0.0, 0.2, 0.4, 0.1, 0.3), BACKDOOR: (0.2,), LABELS: (0.2, 0.4)}  # the most telling ones first
SEEDS = (0, 1)
SETTING = (
    "data=digits clients=20 partition=dirichlet partition.beta=0.3 partition.test_share=0.5 net=mlp net.hidden=[64] "
    "rounds=20 epochs=2 batch=20 lr=0.1 eval_every=20 engine=inline"
)
KEPT = ("accuracy_mean", "worst_decile", "backdoor_success", "attackers")
ACCURACY = Headline()

Found = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    attack: str
    share: float
    method: str
    rule: str

    def words(self, seed: int) -> str:
        attack = f" {ATTACKS[self.attack]} attack.share={self.share}" if self.share else ""
        return f"method={self.method} {SETTING} seed={seed}{attack} {RULES[self.rule]}".strip()

    def numbers(self, found: Found, name: str) -> np.ndarray:
        """Return a number of this run with each seed that is there."""
        runs = [found.get(self.words(seed), {}) for seed in SEEDS]
        return np.array([run[name] for run in runs if name in run])


def grid() -> Iterator[str]:
    """Yield the words of every run."""
    for seed in SEEDS:
        for attack, shares in SHARES.items():
            for share in shares:
                yield from (Cell(attack, share, method, rule).words(seed) for method in METHODS for rule in RULES)


def run(path: Path) -> None:
    """Carry out the runs that are not in the file yet."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    todo = list(grid())
    for number, words in enumerate(todo, start=1):
        if words in found:
            continue
        begin = time.process_time()
        last = simulation_of(Config.load(None, words.split())).run().metrics[-1]
        found[words] = {name: round(last[name], 6) for name in KEPT if name in last}
        found[words]["seconds"] = round(time.process_time() - begin, 2)
        replace_text(path, json.dumps(found, indent=1))
        print(f"{number}/{len(todo)} {words}: {found[words]}", flush=True)


def page(found: Found, picture: str) -> str:
    """Return the page; `picture` is the name of its picture."""
    spent, seeds = sum(one["seconds"] for one in found.values()), _seeds(found)
    sheets = [
        *(_shares_sheet(found, method) for method in METHODS),
        _sheet(found, "Flipped labels, 40 % attackers: worst decile", LABELS, 0.4, "worst_decile"),
        _sheet(found, "A backdoor, 20 % attackers: success", BACKDOOR, 0.2, "backdoor_success", lower=True),
        _sheet(found, "A backdoor, 20 % attackers: worst decile", BACKDOOR, 0.2, "worst_decile"),
    ]
    return "\n".join(
        [
            INTRODUCTION.format(runs=len(found), minutes=spent / 60, seeds=seeds, picture=picture),
            *(as_markdown(sheet, level=2) for sheet in sheets if any(set(row[1:]) != {"—"} for row in sheet.rows)),
            f"One of these runs, as it is typed:\n\n`fedtailor run {Cell(UPDATE, 0.2, 'fedavg', 'trimmed 0.2').words(0)}`\n",
        ]
    )


def _seeds(found: Found) -> str:
    """Say with how many seeds."""
    seeds = sorted({seed for seed in SEEDS if any(f" seed={seed}" in words for words in found)})
    return (
        f"Seed {seeds[0]}"
        if len(seeds) == 1
        else f"Mean of seeds {', '.join(map(str, seeds))}, ± their standard deviation"
    )


def _chart(found: Found, method: str) -> Chart:
    """Draw the worst decile over the share of attackers, one line per rule."""
    curves = []
    for rule in RULES:
        known = {s: Cell(UPDATE, s, method, rule).numbers(found, "worst_decile") for s in sorted(SHARES[UPDATE])}
        points = {100 * share: 100 * values.mean() for share, values in known.items() if len(values)}
        curves.append(Series(rule, np.array(list(points)), np.array(list(points.values()))))
    return Chart("share of attackers (%)", "worst decile of the others (%)", curves, title=f"{method}, {UPDATE}")


def _shares_sheet(found: Found, method: str) -> Sheet:
    """One row per rule, one column per share of attackers."""
    shares = sorted(SHARES[UPDATE])
    columns = [_cells(found, [Cell(UPDATE, s, method, r) for r in RULES], "worst_decile") for s in shares]
    title = f"{method}: worst decile with {UPDATE}"
    header = ["robust mean", *(f"{share:.0%} attack" for share in shares)]
    return Sheet(title, header, list(zip(RULES, *columns, strict=True)))


def _sheet(found: Found, title: str, attack: str, share: float, name: str, *, lower: bool = False) -> Sheet:
    """One row per rule, one column per method."""
    columns = [
        _cells(found, [Cell(attack, share, method, rule) for rule in RULES], name, lower=lower) for method in METHODS
    ]
    return Sheet(title, ["robust mean", *METHODS], list(zip(RULES, *columns, strict=True)))


def _cells(found: Found, cells: Sequence[Cell], name: str, *, lower: bool = False) -> list[str]:
    """Write a number of each run in percent, the best one marked, and beside a worst decile the mean of clients."""
    values = [cell.numbers(found, name) for cell in cells]
    means = [v.mean() for v in values if len(v)]
    best = (min(means) if lower else max(means)) if means else None
    written = []
    for cell, numbers in zip(cells, values, strict=True):
        beside = ACCURACY.written(cell.numbers(found, "accuracy_mean")) if name == "worst_decile" else ""
        text = f"{ACCURACY.written(numbers)} ({beside})" if beside and len(numbers) else ACCURACY.written(numbers)
        written.append(Best(text) if len(numbers) and numbers.mean() == best else text)
    return written


INTRODUCTION = """# Hostile clients: results

Written by `python -m bench.robust` from docs/results/robust.json, {runs} runs, {minutes:.0f} minutes of one core. Digits, 20 clients
(Dirichlet 0.3, half of the samples for testing), a net of one hidden layer, 20 rounds of two epochs. All numbers are accuracies in percent,
of the clients that do not attack; the worst decile is the mean of the tenth of them that fares worst, here one or two clients, so it is
coarse; in brackets the mean of clients. {seeds}. Bold: the best of its column. What the rules are and how many attackers each tolerates:
[hostile clients](../robust.md). `trimmed 0.2` promises nothing beyond 20 % attackers, and Krum nothing beyond 40 % (8 of 20).

Attackers spoil everything that they send. FedAvg, Ditto and FedRep only send what is averaged. PGFedSplit also sends prototypes and mixing
weights, which no robust mean covers (a warning says so), so nothing is promised for it.

![worst decile over the share of attackers]({picture})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("json", type=Path)
    parser.add_argument("--page", type=Path, default=Path("docs/results/robust.md"))
    args = parser.parse_args()
    if args.what == "run":
        run(args.json)
    else:
        found, picture = json.loads(args.json.read_text()), args.page.with_suffix(".png")
        save(panels([_chart(found, method) for method in METHODS], size=(4.6, 3.6)), picture)
        replace_text(args.page, page(found, picture.name))


if __name__ == "__main__":
    main()
