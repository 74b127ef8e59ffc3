"""What a report says, section by section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedtailor.papers.reproduction import Reproduction
from fedtailor.report.charts import (
    MOST_COLUMNS,
    Chart,
    client_heat,
    curves,
    dots,
    label_heat,
    of_one_seed,
    strips,
    tradeoff,
)
from fedtailor.report.groups import by_method
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.material import Material
from fedtailor.report.reproduction import agreement_chart, column_sheets
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet
from fedtailor.report.significance import against, choose_baseline
from fedtailor.report.tables import (
    BYTES,
    PACE,
    aspect,
    common_parameters,
    comparison_sheet,
    differing_parameters,
    progress_of,
)

CHANCE = 0.05
FEW_RUNS = 12  # whose table stands open
CURVES = (
    "Mean over the clients' own models. A click on a name in the legend hides a method, a double click leaves it alone; "
    "bands are ± one standard deviation over runs."
)
STRIPS = "Last evaluation, every client on its own test samples; the clients of all seeds together."
FAIRNESS = (
    "Mean over the tenth of clients that fare worst, and the standard deviation over clients; bars are ± one over runs."
)
COSTS = (
    "All clients together, both ways; seconds of training, evaluation and communication on the machine of the run. "
    "Filled dots lie on the front: nothing is better at their cost or a lower one."
)
NO_LABELS = "These runs have no labels.json: they were made before it was written."


@dataclass(frozen=True)
class Section:
    """A heading of some level, paragraphs (style, text), tables, commands to show, and charts below them."""

    id: str
    title: str
    words: Sequence[tuple[str, str]] = ()
    sheets: Sequence[Sheet] = ()
    folded: Sequence[Sheet] = ()
    commands: Sequence[tuple[str, Sequence[str]]] = ()
    charts: Sequence[dict[str, Any]] = ()
    level: int = 2


def sections(material: Material, command: str) -> list[Section]:
    """The whole report in the order it is read."""
    return [
        _head(material),
        *(_reproduction(f"r{k}", found) for k, found in enumerate(material.reproductions.values())),
        *(s for k, title in enumerate(material.federations) for s in _federation(f"f{k}", title, material)),
        _parameters(material),
        _runs(material, command),
    ]


def _head(material: Material) -> Section:
    results = material.results
    methods = list(dict.fromkeys(r.method for r in results))
    data = list(dict.fromkeys(r.config["data"]["name"] for r in results))
    who = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    runs = f"{len(results)} run" + ("s" if len(results) > 1 else "")
    unfinished = Counter(r.state for r in results if not r.finished)
    told = "; ".join(f"{count} {state}" for state, count in unfinished.items())
    words = [
        ("lead", f"{runs}: {', '.join(methods)}."),
        *([("warning", f"Not every run is finished: {told}. See “Runs” below.")] if told else []),
        *(("warning", f"Left out: {problem}") for problem in material.unreadable),
    ]
    return Section("head", f"{who} on {', '.join(data)}", words, level=1)


def _reproduction(mark: str, found: Reproduction) -> Section:
    words = [("note scale", found.scale_note)] if found.scale_note else []
    words += [("note", f"Left open by the paper, and chosen: {'; '.join(found.choices)}.")] if found.choices else []
    title = f"Published and measured: {found.title}"
    return Section(mark, title, words, column_sheets(found), charts=[plotly_chart(agreement_chart(found))])


def _federation(mark: str, title: str, material: Material) -> list[Section]:
    runs, metric = material.federations[title], material.metric
    evaluated = [r for r in runs if r.evaluated]
    groups = by_method(evaluated)
    lead = _lead(groups, material)
    opening = Section(f"{mark}-comparison", title, lead, [comparison_sheet(title, runs, material)])
    if not evaluated:
        return [opening]
    same_seed, seed = of_one_seed(groups)
    labels = next((r.labels for r in runs if r.seed == seed and r.labels), None)
    many = len(next(iter(same_seed.values())).clients(metric)) > MOST_COLUMNS
    some = f" Of the many clients up to {MOST_COLUMNS:,} are shown, evenly chosen." if many else ""
    better = "lower" if metric.lower_is_better else "higher"
    worst, spread = aspect(metric, "worst"), aspect(metric, "spread")
    fairness = {
        metric.axis("worst decile") + f", {better} is fairer": worst,
        metric.axis("spread") + ", lower is fairer": spread,
    }
    scale = [("note scale", sentence) for sentence in material.scale(runs)]

    def part(name: str, heading: str, words: str, *charts: Chart) -> Section:
        drawn = [plotly_chart(chart) for chart in charts]
        return Section(f"{mark}-{name}", heading, [("words", words), *scale], charts=drawn, level=3)

    return [
        opening,
        part("rounds", f"{metric.heading} over rounds", CURVES, curves(groups, metric)),
        part("clients", f"{metric.heading} of each client", STRIPS, strips(groups, metric)),
        part(
            "heat",
            "Clients under each method",
            f"Seed {seed}: who gains and who loses.{some}",
            client_heat(same_seed, metric),
        ),
        part("labels", HOLDS, f"Training samples by client and class, seed {seed}.{some}", label_heat(labels))
        if labels
        else part("labels", HOLDS, NO_LABELS),
        part(
            "fairness",
            "Fairness",
            FAIRNESS,
            *(dots(groups, t, [metric.scale * a.numbers(g) for g in groups.values()]) for t, a in fairness.items()),
        ),
        part(
            "cost",
            f"What {metric.title} costs",
            COSTS,
            *(tradeoff(groups, metric, a.title, [a.numbers(g) for g in groups.values()]) for a in (BYTES, PACE)),
        ),
    ]


HOLDS = "Who holds which labels"


def _lead(groups: dict[str, list[Result]], material: Material) -> list[tuple[str, str]]:
    """Who does best, and whether that means anything."""
    if len(groups) < 2:
        return []
    metric = material.metric
    best = choose_baseline(groups, metric)
    verdicts = against(groups, best, metric)
    clear = sum(verdict.p < CHANCE for verdict in verdicts.values())
    told = f" {clear} of {len(verdicts)} others differ from it at p < {CHANCE}." if verdicts else ""
    among = "" if all(r.finished for runs in groups.values() for r in runs) else " of the finished methods"
    extreme = "Lowest" if metric.lower_is_better else "Highest"
    value = " ".join(filter(None, (aspect(metric, "mean").cell(groups[best]), metric.unit)))
    return [("words", f"{extreme} mean {metric.title} of clients{among}: {best}, {value}.{told}")]


def _parameters(material: Material) -> Section:
    results = material.results
    title = "Hyper-parameters"
    return Section("parameters", title, sheets=[differing_parameters(results)], folded=[common_parameters(results)])


def _runs(material: Material, command: str) -> Section:
    mean = aspect(material.metric, "mean")
    rows = [
        (str(r.path), r.method, str(r.seed), progress_of(r), mean.cell([r]) if r.evaluated else "—")
        for r in sorted(material.results, key=lambda r: r.finished)
    ]
    long = len(rows) > FEW_RUNS and all(r.finished for r in material.results)
    title = f"{len(rows)} runs, all finished" if long else "Runs"
    sheets = [Sheet(title, ("folder", "method", "seed", "state", mean.title), rows, left=4)]
    made = list(dict.fromkeys(r.command for r in material.results if r.command))
    again = "Each folder's config.toml runs again as it is; this page was made with"
    commands = [*([("The runs were made with", made)] if made else []), (again, [command])]
    return Section("runs", "Runs", sheets=[] if long else sheets, folded=sheets if long else [], commands=commands)
