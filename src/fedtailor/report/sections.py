"""What a report says, section by section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.errors import FedTailorError
from fedtailor.report.beside import Reproduction, reproduction_chart, reproduction_sheet
from fedtailor.report.charts.clients import client_boxes, client_heat, label_heat
from fedtailor.report.charts.rounds import curves
from fedtailor.report.charts.style import MOST_COLUMNS, Chart
from fedtailor.report.charts.tradeoffs import costs, fairness
from fedtailor.report.groups import by_method
from fedtailor.report.material import Material
from fedtailor.report.parameters import common_parameters, differing_parameters
from fedtailor.report.results import Result
from fedtailor.report.sheets import Sheet, as_html, escape_html
from fedtailor.report.significance import against, choose_baseline
from fedtailor.report.tables import MEAN, comparison_sheet, stand


@dataclass(frozen=True)
class Section:
    """A heading, words and tables as HTML, and charts below them; `level` is that of the heading."""

    id: str
    title: str
    html: str = ""
    charts: Sequence[Chart] = ()
    level: int = 2


def sections(material: Material, command: str) -> list[Section]:
    """The whole report in the order it is read."""
    federations = material.federations
    other = [r for r in material.results if r.headline.name != "accuracy"]
    if other:
        raise FedTailorError(
            f"'{other[0].path}' is ranked by {other[0].headline.name}, but the charts of this page are of accuracy. Its table: --format md."
        )
    return [
        _head(material),
        *(_reproduction(k, r) for k, r in enumerate(material.reproductions)),
        *(s for k, title in enumerate(federations) for s in _federation(f"f{k}", title, material)),
        _parameters(material),
        _runs(material, command),
    ]


def comparison_sheets(material: Material) -> list[Sheet]:
    """The comparison of each federation."""
    return [
        comparison_sheet(title, runs, material.baseline, material.scale(runs))
        for title, runs in material.federations.items()
    ]


def _head(material: Material) -> Section:
    results = material.results
    methods = list(dict.fromkeys(r.method for r in results))
    data = list(dict.fromkeys(r.config["data"]["name"] for r in results))
    who = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    runs = f"{len(results)} run" + ("s" if len(results) > 1 else "")
    unfinished = Counter(r.state for r in results if not r.finished)
    told = "; ".join(f"{count} {state}" for state, count in unfinished.items())
    lines = [
        _paragraph(f"{runs}: {', '.join(methods)}.", "lead"),
        *([_paragraph(f"Not every run is finished: {told}. See “Runs” below.", "warning")] if told else []),
        *(_paragraph(f"Left out: {problem}", "warning") for problem in material.unreadable),
    ]
    return Section("head", f"{who} on {', '.join(data)}", "".join(lines), level=1)


def _reproduction(number: int, reproduction: Reproduction) -> Section:
    sheet = reproduction_sheet(reproduction)
    title = f"Published and measured: {sheet.title}"
    return Section(f"r{number}", title, as_html(sheet), [reproduction_chart(reproduction)])


def _federation(mark: str, title: str, material: Material) -> list[Section]:
    runs = material.federations[title]
    scale = "".join(_paragraph(sentence, "note scale") for sentence in material.scale(runs))
    sheet = comparison_sheet(title, runs, material.baseline, material.scale(runs))
    opening = Section(f"{mark}-comparison", title, _lead(runs) + as_html(sheet))
    evaluated = [r for r in runs if r.evaluated]
    if not evaluated:
        return [opening]
    groups = by_method(evaluated)
    same_seed, seed = _of_one_seed(groups)
    labels = next((r.labels for r in runs if r.seed == seed and r.labels), None)
    many = len(next(iter(same_seed.values())).clients) > MOST_COLUMNS
    some = f" Of the many clients up to {MOST_COLUMNS:,} are shown, evenly chosen." if many else ""

    def part(name: str, heading: str, words: str, charts: Sequence[Chart]) -> Section:
        return Section(f"{mark}-{name}", heading, _paragraph(words) + scale, charts, level=3)

    return [
        opening,
        part("rounds", "Accuracy over rounds", CURVES, [curves(groups)]),
        part("clients", "Accuracy of each client", BOXES, [client_boxes(groups)]),
        part(
            "heat",
            "Clients under each method",
            f"Seed {seed}: who gains and who loses.{some}",
            [client_heat(same_seed)],
        ),
        part(
            "labels",
            "Who holds which labels",
            f"Training samples by client and class, seed {seed}.{some}",
            [label_heat(labels)],
        )
        if labels
        else part("labels", "Who holds which labels", NO_LABELS, []),
        part("fairness", "Fairness", FAIRNESS, fairness(groups)),
        part("cost", "What accuracy costs", COSTS, costs(groups)),
    ]


CHANCE = 0.05
FEW_RUNS = 12  # whose table stands open
CURVES = (
    "Mean accuracy of the clients' own models. A click on a name in the legend hides a method, a double click leaves it alone; "
    "bands are ± one standard deviation over runs."
)
BOXES = "Last evaluation, every client on its own test samples; the clients of all seeds together."
FAIRNESS = "Mean accuracy of the tenth of clients that fare worst, and the standard deviation over clients; bars are ± one over runs."
COSTS = (
    "All clients together, both ways; seconds of training, evaluation and communication on the machine of the run. "
    "Filled dots lie on the front: nothing is better at their cost or a lower one."
)
NO_LABELS = "These runs have no labels.json: they were made before it was written."


def _lead(runs: Sequence[Result]) -> str:
    """Who does best, and whether that means anything."""
    groups = by_method([r for r in runs if r.evaluated])
    if len(groups) < 2:
        return ""
    best = choose_baseline(groups)
    verdicts = against(groups, best)
    clear = sum(verdict.p < CHANCE for verdict in verdicts.values())
    told = f" {clear} of {len(verdicts)} others differ from it at p < {CHANCE}." if verdicts else ""
    among = "" if all(r.finished for r in runs) else " of the finished methods"
    return _paragraph(f"Highest mean accuracy of clients{among}: {best}, {MEAN.cell(groups[best])} %.{told}")


def _of_one_seed(groups: dict[str, list[Result]]) -> tuple[dict[str, Result], int]:
    """The runs of the seed that most methods have: the clients of two seeds are not the same."""
    seed = Counter(s for runs in groups.values() for s in {r.seed for r in runs}).most_common(1)[0][0]
    return {name: r for name, runs in groups.items() for r in runs if r.seed == seed}, seed


def _parameters(material: Material) -> Section:
    common = as_html(common_parameters(material.results))
    differing = as_html(differing_parameters(material.results))
    return Section("parameters", "Hyper-parameters", differing + _folded("Common to all runs", common))


def _runs(material: Material, command: str) -> Section:
    rows = [
        (str(r.path), r.method, str(r.seed), stand(r), MEAN.cell([r]) if r.evaluated else "—")
        for r in sorted(material.results, key=lambda r: r.finished)
    ]
    sheet = as_html(Sheet("Runs", ("folder", "method", "seed", "state", MEAN.title), rows, left=4))
    if len(rows) > FEW_RUNS and all(r.finished for r in material.results):
        sheet = _folded(f"{len(rows)} runs, all finished", sheet)
    commands = "".join(_code(line) for line in dict.fromkeys(r.command for r in material.results if r.command))
    made = f"<p>The runs were made with</p>{commands}" if commands else ""
    again = _paragraph("Each folder's config.toml runs again as it is: fedtailor run FOLDER/config.toml", "note")
    return Section("runs", "Runs", f"{sheet}{made}{again}<p>and this page with</p>{_code(command)}")


def _paragraph(words: str, style: str = "words") -> str:
    return f'<p class="{style}">{escape_html(words)}</p>'


def _folded(summary: str, html: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{html}</details>"


def _code(line: str) -> str:
    return f'<pre class="scroll"><code>{escape_html(line)}</code></pre>'
