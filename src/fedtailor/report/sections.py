"""What a report says, section by section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.analysis.groups import by_method
from fedtailor.analysis.ranking import blocks_of, ranking
from fedtailor.analysis.significance import against, choose_baseline
from fedtailor.data.description import Description
from fedtailor.experiment.headline import Headline, Statistic
from fedtailor.papers.reproduction import Reproduction
from fedtailor.report import charts, tables
from fedtailor.report.charts import MOST_COLUMNS, Chart, Groups
from fedtailor.report.clients import Clients, all_clients
from fedtailor.report.data_summary import columns_sheet
from fedtailor.report.material import Material
from fedtailor.report.privacy import privacy_notes, privacy_sheets
from fedtailor.report.ranks import ranks_chart, ranks_sheet
from fedtailor.report.reproduction import agreement_chart, column_sheets
from fedtailor.report.sheets import Sheet
from fedtailor.report.tuning import Trials, sensitivity_chart, tuning_sheet

CHANCE = 0.05
FEW_RUNS, FEW_ROWS = 12, 50  # up to this many runs, or clients or columns, their table is shown unfolded
ROUNDS = (
    "Mean over the clients' own models. A click on a name in the legend hides a method, a double click leaves it alone; bands are ± one "
    "standard deviation over runs."
)
CLIENTS = "Last evaluation, every client on its own test samples; the clients of all seeds together."
FAIRNESS = (
    "Mean over the tenth of clients that fare worst, and the standard deviation over clients; bars are ± one over runs."
)
COST = (
    "All clients together, both ways; seconds of training, evaluation and communication on the machine of the run. Filled dots lie on the "
    "front: nothing is better at their cost or a lower one."
)


@dataclass(frozen=True)
class Section:
    """A heading of some level, paragraphs (style, text), tables, commands to show, and charts below them."""

    id: str
    title: str
    words: Sequence[tuple[str, str]] = ()
    sheets: Sequence[Sheet] = ()
    folded: Sequence[Sheet] = ()
    commands: Sequence[tuple[str, Sequence[str]]] = ()
    charts: Sequence[Chart] = ()
    level: int = 2


def sections(material: Material, command: str) -> list[Section]:
    """Return the whole report in reading order."""
    return [
        _head(material),
        *(_reproduction(f"r{k}", found) for k, found in enumerate(material.reproductions.values())),
        *(s for k, title in enumerate(material.federations) for s in _federation(f"f{k}", title, material)),
        *_ranks(material),
        *(_tuning(f"t{k}", folder.name, trials) for k, (folder, trials) in enumerate(material.tunings.items())),
        *_privacy(material),
        _parameters(material),
        _runs(material, command),
    ]


def _head(material: Material) -> Section:
    results = material.results
    methods = list(dict.fromkeys(r.method for r in results))
    data = dict.fromkeys(r.config["data"]["name"] for r in results)
    who = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    runs = f"{len(results)} run" + ("s" if len(results) > 1 else "")
    unfinished = Counter(r.state for r in results if not r.finished)
    states = "; ".join(f"{count} {state}" for state, count in unfinished.items())
    words = [
        ("lead", f"{runs}: {', '.join(methods)}."),
        *([("warning", f"Not every run is finished: {states}. See “Runs” below.")] if states else []),
        *(("warning", f"Left out: {problem}") for problem in material.unreadable),
    ]
    return Section("head", f"{who} on {', '.join(data)}", words, level=1)


def _reproduction(mark: str, found: Reproduction) -> Section:
    words = [("note scale", found.scale_note)] if found.scale_note else []
    words += [("note", f"Left open by the paper, and chosen: {' '.join(found.choices)}")] if found.choices else []
    title = f"Published and measured: {found.title}"
    return Section(mark, title, words, column_sheets(found), charts=[agreement_chart(found)])


def _federation(mark: str, title: str, material: Material) -> list[Section]:
    """Return the comparison of runs on the same clients, then each client, then their charts."""
    runs, metric = material.federations[title], material.metric
    groups = by_method([r for r in runs if r.evaluated])
    sheet = tables.comparison_sheet(title, runs, material)
    scale = [("note scale", sentence) for sentence in material.scale(runs)]
    found = [Section(f"{mark}-comparison", title, _lead(groups, material), [sheet])]
    described = next((r.description for r in runs if r.description), None)
    if described and (described.columns or described.notes):
        found.append(_described(f"{mark}-data", described))
    known = {name: g for name, g in groups.items() if all(np.isfinite(metric.of(r.last, "mean")) for r in g)}
    if clients := all_clients(known, metric, material.baseline):
        found.append(_clients(f"{mark}-gains", clients, scale))
    return [*found, *(_charts(mark, known, metric, scale) if known else ())]


def _lead(groups: Groups, material: Material) -> list[tuple[str, str]]:
    """Say which finished method does best, and whether its lead is significant."""
    metric = material.metric
    best = choose_baseline(groups, metric) if len(groups) > 1 else ""
    if not best:
        return []
    verdicts = against(groups, best, metric)
    clear = sum(verdict.p < CHANCE for verdict in verdicts.values())
    others = f" {clear} of {len(verdicts)} others differ from it at p < {CHANCE}." if verdicts else ""
    among = "" if all(r.finished for runs in groups.values() for r in runs) else " of the finished methods"
    extreme = "Lowest" if metric.lower_is_better else "Highest"
    value = " ".join(filter(None, (*tables.statistic_column(metric, "mean").cells({best: groups[best]}), metric.unit)))
    return [("words", f"{extreme} mean {metric.title} of clients{among}: {best}, {value}.{others}")]


def _described(mark: str, described: Description) -> Section:
    """Say how the data was described: the columns of a table, and what was noted."""
    sheets = [columns_sheet(described)] if described.columns else []
    few = len(described.columns) <= FEW_ROWS
    words = [("words", note) for note in described.notes]
    return Section(mark, "Data", words, sheets if few else [], [] if few else sheets, level=3)


def _clients(mark: str, clients: Sequence[Clients], scale: Sequence[tuple[str, str]]) -> Section:
    """Show each client under the best method, with the other methods' tables folded."""
    sheets = [one.sheet() for one in clients]
    shown = 1 if len(sheets[0].rows) <= FEW_ROWS else 0
    title = sheets[0].title.replace("Clients", "Who gains and who loses" if clients[0].alone else "Each client", 1)
    return Section(mark, title, scale, sheets[:shown], sheets[shown:], charts=[clients[0].chart()], level=3)


def _charts(mark: str, groups: Groups, metric: Headline, scale: Sequence[tuple[str, str]]) -> Iterator[Section]:
    """Yield the sections with charts below a comparison."""

    def section(name: str, heading: str, note: str, *shown: Chart) -> Section:
        return Section(f"{mark}-{name}", heading, [("words", note), *scale], charts=shown, level=3)

    yield section("rounds", f"{metric.heading} over rounds", ROUNDS, charts.curves(groups, metric))
    yield section("clients", f"{metric.heading} of each client", CLIENTS, charts.strips(groups, metric))
    one, seed = charts.of_one_seed(groups)
    if labels := next((r.labels for r in one.values() if r.labels), None):
        many = len(labels.counts) > MOST_COLUMNS
        some = f" Up to {MOST_COLUMNS:,} clients are shown, evenly chosen." if many else ""
        held = charts.label_chart(labels.counts, labels.labels, labels.clients)
        note = f"Training samples by client and class, seed {seed}.{some}"
        yield section("labels", "Who holds which labels", note, held)
    worst = metric.axis("worst decile") + f", {'lower' if metric.lower_is_better else 'higher'} is fairer"
    spread = metric.axis("spread of clients") + ", lower is fairer"
    spreads = (_over_runs(groups, metric, "worst", worst), _over_runs(groups, metric, "spread", spread))
    yield section("fairness", "Fairness", FAIRNESS, *spreads)
    costs = ((cost.title, [cost.numbers(g) for g in groups.values()]) for cost in tables.COSTS)
    found = (charts.tradeoff(groups, metric, *cost) for cost in costs)
    yield section("cost", f"What {metric.title} costs", COST, *found)


def _over_runs(groups: Groups, metric: Headline, statistic: Statistic, title: str) -> Chart:
    """Chart a statistic of each method: its mean and standard deviation over runs."""
    values = [metric.scale * tables.statistic_column(metric, statistic).numbers(runs) for runs in groups.values()]
    mean, std = (np.array([f(one) for one in values]) for f in (np.mean, np.std))
    return charts.forest(title, list(groups), mean, (mean - std, mean + std))


def _ranks(material: Material) -> list[Section]:
    """Rank the methods over all federations and seeds, if these are enough."""
    lower = material.metric.lower_is_better
    found = ranking(blocks_of(material.federations, material.metric), lower_is_better=lower)
    return [Section("ranks", "Ranks", sheets=[ranks_sheet(found)], charts=[ranks_chart(found)])] if found else []


def _tuning(mark: str, study: str, trials: Trials) -> Section:
    """Show what each method was tuned to, and how much that matters."""
    drawn = [chart for chart in [sensitivity_chart(trials)] if chart.series]
    return Section(mark, f"Tuning of {study}", sheets=[tuning_sheet(trials)], charts=drawn)


def _privacy(material: Material) -> list[Section]:
    """Show the rules for what leaves a client, if any run has some."""
    sheets = privacy_sheets(material.results)
    words = [("words", note) for note in privacy_notes(material.results)]
    return [Section("privacy", "Privacy", words, sheets)] if sheets else []


def _parameters(material: Material) -> Section:
    differing, common = tables.parameter_sheets(material.results)
    return Section("parameters", "Hyper-parameters", sheets=[differing], folded=[common])


def _runs(material: Material, command: str) -> Section:
    mean = tables.statistic_column(material.metric, "mean")
    rows = [
        (str(r.path), r.method, str(r.seed), r.progress, *(mean.cells({"": [r]}) if r.evaluated else "—"))
        for r in sorted(material.results, key=lambda r: r.finished)
    ]
    long = len(rows) > FEW_RUNS and all(r.finished for r in material.results)
    title = f"{len(rows)} runs, all finished" if long else "Runs"
    sheets = [Sheet(title, ("folder", "method", "seed", "state", mean.title), rows, left=4)]
    made = list(dict.fromkeys(r.command for r in material.results if r.command))
    again = "Each folder's config.toml runs again as it is: fedtailor run FOLDER/config.toml. This page was made with"
    commands = [*([("The runs were made with", made)] if made else []), (again, [command])]
    return Section("runs", "Runs", sheets=[] if long else sheets, folded=sheets if long else [], commands=commands)
