"""The verdicts on the papers' claims: tables for the terminal, the page docs/results/evidence.md, and a forest plot per paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtailor.extras import can_draw
from fedtailor.files import make_folder, replace_text
from fedtailor.methods import methods
from fedtailor.papers.claims.effect import ENOUGH, interval
from fedtailor.papers.claims.evidence import ClaimEvidence, Compared, Evidence
from fedtailor.report.charts import Chart, forest, save_picture
from fedtailor.report.sheets import Best, Sheet, as_markdown, escape_markdown

HOUR = 3600.0
TITLES = {
    "pgfedsplit": "PGFedSplit",
    "heart": "HEART-PFL",
    "fedsimsup": "FedSimSup",
    "fedafk": "FedAFK",
    "fedah": "FedAH",
    "field": "The field's order",
}
METHOD = """Each claim is tested under an affordable protocol in which the same mechanism is at work. Arms are paired by seed and
client. The lead is that of the first arm over the second, in points: the mean over clients of the last models' accuracy, with a 95 %
interval over seeds. (It is Student's: seeds deal the samples to new clients, who train together, so seeds are the independent units.) A
comparison *holds* if the whole interval is above 0. It *does not* if the whole interval is below the smallest lead that matters: half a
point, or the published lead if that is smaller. It is *open* if there are fewer than five seeds, if the interval allows either, or if
training had not converged, that is, if another fifth of the rounds with the gains of the last fifth would change the verdict. A claim
holds if all of its comparisons do. Intervals are not corrected for the number of comparisons. "Gains" are what either arm gained over the
last fifth of its rounds; they count as 0 for methods that fine-tune after the rounds, and are not known of tuned runs."""
CHOICE = """Accuracy in percent, mean over clients ± deviation over seeds. Bold: the best of the column. ≈: not surely behind it, since
the 95 % interval of the difference, paired by seed, includes 0. All methods of a column had the same learning rate, except in tuned
protocols, in which each had its own. `tailor`, the method of this package, is among those of the [judge](judge.md)."""
CORRELATION = """Over the means of all methods of the published column; only columns all of whose methods were run with all seeds. Published
numbers that differ by tenths of a point have an order that chance can turn."""
COMMANDS = """## Commands

<!-- not run: hours, on data sets that are not in the package -->
```sh
fedtailor claims --plan                    # what is missing, measured seconds per round, hours
fedtailor claims --run --workers 2         # goes on where it was interrupted
fedtailor claims fedah/weights --run       # one claim
fedtailor claims --page docs/results --tuned docs/results/judge.json   # this page, from the finished runs
```"""


def listing(found: Evidence) -> Sheet:
    """One row per claim, for the terminal."""
    rows = [(c.name, c.verdict, _leads(c), _runs(c)) for c in found.claims]
    title = f"{found.finished} of {found.runs} runs are finished"
    return Sheet(title, ("claim", "verdict", "lead (points)", "runs"), rows, left=2)


def plan_listing(found: Evidence, workers: int) -> Sheet:
    """One row per claim: what its missing runs would cost; runs that claims share are in each of them."""
    rows = [(c.name, _runs(c), _number(c.cost.seconds_per_round, ".2f"), _hours(c)) for c in found.claims]
    note = f"Hours on one core; divide by {workers} workers." if workers > 1 else "Hours on one core."
    return Sheet("What the claims cost", ("claim", "runs", "seconds per round", "hours left"), rows, [note])


def write_evidence(found: Evidence, folder: Path) -> list[Path]:
    """Write the page, the machine-readable file and the pictures; return the paths."""
    make_folder(folder)
    page, data = folder / "evidence.md", folder / "evidence.json"
    replace_text(data, found.model_dump_json(indent=1) + "\n")
    replace_text(page, as_page(found))
    return [page, data, *(_pictures(found, folder) if can_draw() else [])]


def as_page(found: Evidence) -> str:
    hours = found.seconds / HOUR
    parts = [
        "# Evidence: what the five papers claim, tested",
        f"Written by `fedtailor claims --page docs/results --tuned docs/results/judge.json` from evidence.json. {METHOD} "
        f"{found.finished} of {found.runs} runs are finished; they took {hours:.1f} hours by the clock, beside much other work.",
        _summary(found),
        _choice(found),
        _correlations(found),
    ]
    for paper in dict.fromkeys(c.paper for c in found.claims):
        parts.append(_section(paper, [c for c in found.claims if c.paper == paper]))
    parts += [_protocols(found), COMMANDS]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _summary(found: Evidence) -> str:
    """One line per claim."""
    rows = [
        (f"{TITLES[c.paper]}: {c.says}", c.protocol, Best(c.verdict) if c.verdict != "open" else c.verdict, _leads(c))
        for c in found.claims
    ]
    counts = {v: sum(c.verdict == v for c in found.claims) for v in ("holds", "does not", "open")}
    told = f"Verdicts: holds {counts['holds']}, does not {counts['does not']}, open {counts['open']}."
    sheet = Sheet("Verdicts", ("claim", "protocol", "verdict", "smallest lead (points)"), rows, [told], left=4)
    return as_markdown(sheet, 2)


def _choice(found: Evidence) -> str:
    """The methods beside each other, for somebody who has to choose one: a column per protocol under which several ran with all seeds."""
    columns = {name: ran for name in found.protocols if len(ran := _methods(found, name)) > 1}
    if not columns:
        return ""
    best = {name: max(ran, key=lambda method: ran[method].mean()) for name, ran in columns.items()}
    near = {name: {m for m in ran if interval(ran[best[name]] - ran[m])[0] <= 0} for name, ran in columns.items()}
    ran_on = {m: [name for name in columns if m in columns[name]] for ran in columns.values() for m in ran}
    good = {m: sum(m in near[name] for name in ran_on[m]) for m in ran_on}
    order = sorted(ran_on, key=lambda m: (-good[m] / len(ran_on[m]), -len(ran_on[m])))

    def cell(method: str, name: str) -> str:
        if method not in columns[name]:
            return "—"
        values = columns[name][method]
        text = f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        return Best(text) if method == best[name] else f"{text} ≈" if method in near[name] else text

    rows = [(m, *(cell(m, name) for name in columns), f"{good[m]} of {len(ran_on[m])}") for m in order]
    sheet = Sheet("For somebody who has to choose", ("method", *columns, "among the best"), rows)
    always = [m for m in order if good[m] == len(ran_on[m]) > 1]
    never = [m for m in order if not good[m]]
    told = [
        f"Among the best wherever they ran, more than once: {', '.join(always) or 'none'}.",
        f"Never among them: {', '.join(never) or 'none'}.",
        "The settings are named under Protocols. With clients or data like these, start with the former, and compare with training alone.",
    ]
    return "\n\n".join([as_markdown(sheet, 2).strip(), CHOICE, escape_markdown(" ".join(told))])


def _methods(found: Evidence, protocol: str) -> dict[str, np.ndarray]:
    """The mean over clients by seed of each method, not of its variants, that ran with all seeds under a protocol."""
    claims = [c for c in found.claims if c.protocol == protocol and c.metric == "accuracy"]
    arms = [a for c in claims for a in c.arms if a.arm in methods and len(a.means) >= ENOUGH]
    return {a.arm: np.array([a.means[seed] for seed in sorted(a.means)]) for a in arms}


def _protocols(found: Evidence) -> str:
    """What every run of a protocol is given; an arm adds its method and options."""
    lines = [
        f"- {name}: {protocol.title}.\n\n  `{protocol.overrides}`"
        + (f"\n\n  Changed: {p}" if (p := protocol.changed) else "")
        for name, protocol in found.protocols.items()
    ]
    return "\n".join(["## Protocols", "", *lines])


def _section(paper: str, claims: Sequence[ClaimEvidence]) -> str:
    parts = [f"## {TITLES[paper]}"]
    if any(c.lead is not None for claim in claims for c in claim.comparisons):
        parts.append(f"![Leads with their intervals](evidence-{paper}.png)")
    parts += [f"Changed: {text}" for text in dict.fromkeys(c.changed for c in claims if c.changed)]
    parts += [_of_claim(claim) for claim in claims]
    return "\n\n".join(parts)


def _of_claim(claim: ClaimEvidence) -> str:
    about = f"{claim.source}. Protocol: {claim.protocol}; the paper's: `{claim.full}`. {claim.decides}"
    if claim.metric != "accuracy":
        about += f" Measured: {claim.metric}."
    rows = [_row(c) for c in claim.comparisons]
    header = (
        "comparison",
        "verdict",
        "lead",
        "95 % interval",
        "by seed",
        "published",
        "clients better / worse",
        "gains",
    )
    measured = [row for row, c in zip(rows, claim.comparisons, strict=True) if c.lead is not None]
    title = f"{claim.name.partition('/')[2]}: {claim.verdict}"
    sheet = as_markdown(Sheet(title, header, measured, left=2), 3)
    heading = sheet.partition("\n")[0]
    text = f"{heading}\n\n{escape_markdown(claim.says)}{sheet.removeprefix(heading) if measured else ''}"
    spread = "; ".join(
        f"{a.arm} {np.mean(list(a.means.values())):.2f} ± {np.std(list(a.means.values()), ddof=1):.2f}"
        for a in claim.arms
        if len(a.means) > 1
    )
    lines = [text, about]
    lines += [f"Mean of clients ± deviation over seeds, in percent: {escape_markdown(spread)}."] if spread else []
    lines += [claim.found] if claim.found else []
    lines += [f"Missing: {_missing(claim)}."] if claim.cost.finished < claim.cost.runs else []
    return "\n\n".join(lines)


def _row(c: Compared) -> tuple[str, ...]:
    why = f" ({c.why_open})" if c.why_open else ""
    by_seed = " ".join(f"{lead:+.1f}" for lead in c.leads)
    clients = f"{100 * (c.better or 0):.0f} % / {100 * (c.worse or 0):.0f} %"
    gains = " / ".join(f"{gain:+.1f}" for gain in c.gains) if c.gains else "—"
    names = f"{c.arm} − {c.against}"
    return (
        names,
        c.verdict + why,
        _number(c.lead, "+.2f"),
        _interval(c),
        by_seed,
        _number(c.published, "+.2f"),
        clients,
        gains,
    )


def _interval(c: Compared) -> str:
    return "—" if c.low is None or c.high is None else f"{c.low:+.2f} to {c.high:+.2f}"


def _leads(claim: ClaimEvidence) -> str:
    """The smallest lead with its interval, since a claim stands with its weakest comparison."""
    measured = [c for c in claim.comparisons if c.lead is not None]
    if not measured:
        return "not run"
    weakest = min(measured, key=lambda c: c.lead or 0.0)
    return f"{weakest.lead:+.2f} ({_interval(weakest)}) over {weakest.against}"


def _correlations(found: Evidence) -> str:
    rows = [(c.full, c.protocol, f"{c.rank_correlation:.2f}") for c in found.claims if c.rank_correlation is not None]
    unique = list(dict.fromkeys(rows))
    title = "Rank correlation with published tables"
    if not unique:
        return f"## {title}\n\nNo table was run with all of its methods yet."
    sheet = Sheet(title, ("table and column", "protocol", "Spearman's ρ"), unique, left=2)
    return as_markdown(sheet, 2) + f"\n{CORRELATION}"


def _missing(claim: ClaimEvidence) -> str:
    cost = claim.cost
    rate = f", {cost.seconds_per_round:.2f} seconds per round" if cost.seconds_per_round is not None else ""
    hours = f", about {_hours(claim)} hours of one core" if cost.seconds_left is not None else ""
    return f"{cost.runs - cost.finished} of {cost.runs} runs{rate}{hours}"


def _runs(claim: ClaimEvidence) -> str:
    return f"{claim.cost.finished}/{claim.cost.runs}" if claim.cost.runs else "the judge's"


def _hours(claim: ClaimEvidence) -> str:
    left = claim.cost.seconds_left
    return "—" if left is None else f"{left / HOUR:.2g}" if left else "0"


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else f"{value:{form}}"


def _pictures(found: Evidence, folder: Path) -> list[Path]:
    paths = []
    for paper in dict.fromkeys(c.paper for c in found.claims):
        chart = leads_chart([c for c in found.claims if c.paper == paper])
        if chart.names:
            paths.append(folder / f"evidence-{paper}.png")
            save_picture([chart], paths[-1], size=(8, 1.0))
    return paths


def leads_chart(claims: Sequence[ClaimEvidence]) -> Chart:
    """One dot with its interval per comparison that was measured twice, and a line at 0."""
    lines = [(claim, c) for claim in claims for c in claim.comparisons if c.low is not None and c.high is not None]
    x, low, high = (np.array([getattr(c, side) for _, c in lines], dtype=float) for side in ("lead", "low", "high"))
    names = [f"{c.arm} − {c.against}, {claim.name.partition('@')[2]}" for claim, c in lines]
    return forest("lead in points, with its 95 % interval", names, x, (low, high), zero=True)
