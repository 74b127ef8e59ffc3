"""Write docs/results/audit.md: what leaks from runs of some methods, without and with client-level differential privacy.

    python -m bench.audit run runs/audit                          # the runs and their audits; a few core minutes
    python -m bench.audit page --page docs/results/audit.md       # the page and its picture, from audit.json beside it

Each run is one of `fedtailor run`, each audit one of `fedtailor audit`; what is finished is kept. The canaries are tried on 20 seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedtailor as ft
from fedtailor.auditing.client_canaries import client_canaries
from fedtailor.auditing.finding import Finding
from fedtailor.auditing.subject import Subject
from fedtailor.auditing.views import OTHERS
from fedtailor.experiment.run import simulation_of
from fedtailor.files import replace_text
from fedtailor.report.charts import Chart, Series
from fedtailor.report.pictures import panels, save
from fedtailor.report.sheets import Sheet, as_markdown

SETTING = "data=digits data.fraction=0.5 clients=10 rounds=5 net=mlp net.hidden=32 engine=inline eval_every=5"
CLIP = "privacy.clip=0.5"
PROTECTED = {"fedavg": ("model",), "fedrep": ("body",), "pgfedsplit": ("body", "head"), "fedproto": ()}
EPSILONS = (None, 8.0, 2.0)
SEEDS = 20
NUMBERS = Path("docs/results/audit.json")
QUESTIONS = {
    "labels": "which classes a client has (AUROC)",
    "membership": "who was in the data (AUROC)",
    "inversion": "one sample from one step (correlation)",
}

Row = dict[str, Any]


def words(method: str, epsilon: float | None, seed: int = 0) -> list[str]:
    """The config of a run: ε over all entries that the method only averages, the others plain."""
    said = [*SETTING.split(), f"method={method}", f"seed={seed}"]
    if epsilon is None:
        return said
    rules = [f"privacy.{n}={'dp' if n in PROTECTED[method] else 'plain'}" for n in ft.methods.find(method).up]
    return [*said, *rules, f"privacy.epsilon={epsilon:g}", CLIP]


def cases() -> Iterator[tuple[str, float | None]]:
    for method, protected in PROTECTED.items():
        yield from ((method, epsilon) for epsilon in EPSILONS if epsilon is None or protected)


def audited(method: str, epsilon: float | None, out: Path) -> list[Row]:
    """Carry out a run and its audit if they are not there; return the findings."""
    folder = out / f"{method}-{'plain' if epsilon is None else f'epsilon{epsilon:g}'}"
    with ft.Run(folder).carry_out(ft.Config.load(words=words(method, epsilon)), callbacks=[]) as run:
        accuracy = run.metrics[-1]["accuracy_mean"]
    found = ft.audit(folder, minutes=30)
    print(method, epsilon, f"{accuracy:.3f}", found, flush=True)
    return [{"method": method, "epsilon": epsilon, "accuracy": accuracy, **_row(f)} for f in found.findings]


def _row(finding: Finding) -> Row:
    keys = ("measurement", "entry", "seen_by", "setting", "score", "low", "high", "chance", "promised", "verdict")
    return {key: getattr(finding, key) for key in keys}


def canaries(epsilon: float | None) -> list[Row]:
    """The canaries' bound on runs of 20 seeds, none of which has to be trained."""
    rows = []
    for seed in range(SEEDS):
        with simulation_of(ft.Config.load(words=words("fedavg", epsilon, seed))) as simulation:
            finding = client_canaries(Subject(simulation))
        assert finding is not None
        rows.append({"epsilon": epsilon, "seed": seed, **_row(finding)})
    print("canaries", epsilon, [round(row["score"], 2) for row in rows], flush=True)
    return rows


def run(out: Path) -> None:
    found = [row for method, epsilon in cases() for row in audited(method, epsilon, out)]
    bounds = [row for epsilon in EPSILONS for row in canaries(epsilon)]
    replace_text(NUMBERS, json.dumps({"setting": SETTING, "findings": found, "canaries": bounds}, indent=1))


def shown(rows: Sequence[Row], question: str) -> dict[tuple[str, str], dict[float | None, Row]]:
    """The rows of one question by method and entry, then by ε: as everyone sees a protected entry, as the server sees another."""
    table: dict[tuple[str, str], dict[float | None, Row]] = {}
    for row in rows:
        own = row["measurement"] == question and row["setting"] not in ("one step on 4", "a whole round")
        if own and row["seen_by"] != "all clients":
            known = table.setdefault((row["method"], row["entry"]), {})
            if row["epsilon"] not in known or row["seen_by"] == OTHERS:
                known[row["epsilon"]] = row
    return table


def picture(rows: Sequence[Row], path: Path) -> None:
    """One panel per question: a line per method and entry, a dot per ε."""
    charts = []
    for question, title in QUESTIONS.items():
        table = shown(rows, question)
        series = []
        for place, epsilon in enumerate(EPSILONS):
            found = [(k, own[epsilon]) for k, own in enumerate(table.values()) if epsilon in own]
            at = np.array([k + 0.2 * (place - 1) for k, _ in found])
            score, low, high = (np.array([row[key] for _, row in found]) for key in ("score", "low", "high"))
            series.append(Series(_epsilon(epsilon), score, at, low, high, "dots"))
        names = [f"{method}: {entry}" for method, entry in table]
        charts.append(Chart(title, "", series, names))
    save(panels(charts, size=(5.2, 5.2), title="What leaks, by entry"), path)


def _epsilon(epsilon: float | None) -> str:
    return "no noise" if epsilon is None else f"ε = {epsilon:g}"


def question_sheet(rows: Sequence[Row], question: str) -> Sheet:
    table = shown(rows, question)
    header = ("method", "entry", *map(_epsilon, EPSILONS), "chance")
    lines = []
    for (method, entry), own in table.items():
        cells = [f"{own[e]['score']:.2f} ({own[e]['verdict']})" if e in own else "—" for e in EPSILONS]
        lines.append((method, entry, *cells, f"{next(iter(own.values()))['chance']:.2f}"))
    return Sheet(QUESTIONS[question][:1].upper() + QUESTIONS[question][1:], header, lines, left=2)


def canary_sheet(rows: Sequence[Row]) -> Sheet:
    header = ("run", "ε promised at δ = 10⁻⁵", "bound: median", "largest", "most that can be shown", "bounds above ε")
    lines = []
    for epsilon in EPSILONS:
        own = [row for row in rows if row["epsilon"] == epsilon]
        bounds, promised = [row["score"] for row in own], own[0]["promised"]
        above = sum(bound > (np.inf if promised is None else promised) for bound in bounds)
        claim = "none" if promised is None else f"{promised:.1f}"
        numbers = (f"{np.median(bounds):.2f}", f"{max(bounds):.2f}", f"{own[0]['high']:.2f}")
        lines.append((_epsilon(epsilon), claim, *numbers, "—" if promised is None else f"{above} of {len(own)}"))
    return Sheet("A lower bound on ε from canary clients", header, lines)


ABOUT = f"""# What leaks, and what noise does to it

Written by `python -m bench.audit` from docs/results/audit.json. Each run is a `fedtailor run` with these words and a method, each audit a
`fedtailor audit`:

    {SETTING}

With ε, the entries that the server only averages have the rule `dp` ({CLIP}, δ = 10^−1.1), the others are plain.

An entry with noise is shown as everyone sees it who knows all other replies; without noise, or where it is plain, as the server sees it.
The server itself sees every reply before the noise: against the server, noise at the server protects nothing.

Accuracies are those of one seed after five rounds, and say little. This page asks what an attacker sees.
"""


def page(path: Path) -> None:
    read = json.loads(NUMBERS.read_bytes())
    rows = read["findings"]
    picture(rows, path.with_suffix(".png"))
    accuracy = {(row["method"], row["epsilon"]): row["accuracy"] for row in rows}
    lines = [(m, *(f"{100 * accuracy[m, e]:.1f}" if (m, e) in accuracy else "—" for e in EPSILONS)) for m in PROTECTED]
    quality = Sheet("Accuracy of these runs, in %", ("method", *map(_epsilon, EPSILONS)), lines)
    sheets = [*(question_sheet(rows, question) for question in QUESTIONS), canary_sheet(read["canaries"]), quality]
    shown_at = f"![what leaks, by entry and ε]({path.with_suffix('.png').name})\n"
    replace_text(path, "\n".join([ABOUT, shown_at, *(as_markdown(sheet, level=2) for sheet in sheets)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("run").add_argument("out", type=Path)
    commands.add_parser("page").add_argument("--page", type=Path, default=NUMBERS.with_suffix(".md"))
    given = parser.parse_args()
    if given.command == "run":
        run(given.out)
    else:
        page(given.page)


if __name__ == "__main__":
    main()
