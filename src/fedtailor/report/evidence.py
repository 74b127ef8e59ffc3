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
from fedtailor.report.sheets import Best, Sheet
from fedtailor.report.templates import markdown

HOUR = 3600.0
TITLES = {
    "pgfedsplit": "PGFedSplit",
    "heart": "HEART-PFL",
    "fedsimsup": "FedSimSup",
    "fedafk": "FedAFK",
    "fedah": "FedAH",
    "field": "The field's order",
}
COMPARED = (
    *("comparison", "verdict", "lead", "95 % interval", "by seed"),
    *("published", "clients better / worse", "gains"),
)


def listing(found: Evidence) -> Sheet:
    """One row per claim, for the terminal."""
    rows = [(c.name, c.verdict, _weakest(c), _runs(c)) for c in found.claims]
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
    paths = [folder / "evidence.md", folder / "evidence.json"]
    replace_text(paths[0], as_page(found))
    replace_text(paths[1], found.model_dump_json(indent=1) + "\n")
    for paper, claims in _papers(found).items() if can_draw() else ():
        chart = leads_chart(claims)
        if chart.names:
            paths.append(folder / f"evidence-{paper}.png")
            save_picture([chart], paths[-1], size=(8, 1.0))
    return paths


def as_page(found: Evidence) -> str:
    papers = _papers(found)
    correlated = [c for c in found.claims if c.rank_correlation is not None]
    rows = dict.fromkeys((c.full, c.protocol, f"{c.rank_correlation:.2f}") for c in correlated)
    return markdown(
        "evidence.md",
        found=found,
        hours=f"{found.seconds / HOUR:.1f}",
        titles=TITLES,
        papers=papers,
        drawn=[paper for paper, claims in papers.items() if any(map(_measured, claims))],
        verdicts=_verdicts(found),
        correlations=Sheet("", ("table and column", "protocol", "Spearman's ρ"), list(rows), left=2),
        measured=_measured,
        comparisons=lambda claim: Sheet("", COMPARED, [_row(c) for c in _measured(claim)], left=2),
        means=_means,
        hours_left=_hours,
        **_choice(found),
    )


def leads_chart(claims: Sequence[ClaimEvidence]) -> Chart:
    """One dot with its interval per comparison that was measured twice, and a line at 0."""
    lines = [(claim, c) for claim in claims for c in claim.comparisons if c.low is not None and c.high is not None]
    x, low, high = (np.array([getattr(c, side) for _, c in lines], dtype=float) for side in ("lead", "low", "high"))
    names = [f"{c.arm} − {c.against}, {claim.name.partition('@')[2]}" for claim, c in lines]
    return forest("lead in points, with its 95 % interval", names, x, (low, high), zero=True)


def _papers(found: Evidence) -> dict[str, list[ClaimEvidence]]:
    return {paper: [c for c in found.claims if c.paper == paper] for paper in (c.paper for c in found.claims)}


def _measured(claim: ClaimEvidence) -> list[Compared]:
    return [c for c in claim.comparisons if c.lead is not None]


def _verdicts(found: Evidence) -> Sheet:
    """One line per claim."""
    rows = [
        (f"{TITLES[c.paper]}: {c.says}", c.protocol, c.verdict if c.verdict == "open" else Best(c.verdict), _weakest(c))
        for c in found.claims
    ]
    counts = [f"{v} {sum(c.verdict == v for c in found.claims)}" for v in ("holds", "does not", "open")]
    header = ("claim", "protocol", "verdict", "smallest lead (points)")
    return Sheet("Verdicts", header, rows, [f"Verdicts: {', '.join(counts)}."], left=4)


def _choice(found: Evidence) -> dict[str, Sheet | str]:
    """The methods side by side, for somebody who has to choose one: a column per protocol under which several ran with all seeds."""
    columns = {name: ran for name in found.protocols if len(ran := _methods(found, name)) > 1}
    if not columns:
        return {}
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
    return {
        "choice": Sheet("For somebody who has to choose", ("method", *columns, "among the best"), rows),
        "always": ", ".join(m for m in order if good[m] == len(ran_on[m]) > 1),
        "never": ", ".join(m for m in order if not good[m]),
    }


def _methods(found: Evidence, protocol: str) -> dict[str, np.ndarray]:
    """The mean over clients by seed of each method, not of its variants, that ran with all seeds under a protocol."""
    claims = [c for c in found.claims if c.protocol == protocol and c.metric == "accuracy"]
    arms = [a for c in claims for a in c.arms if a.arm in methods and len(a.means) >= ENOUGH]
    return {a.arm: np.array([a.means[seed] for seed in sorted(a.means)]) for a in arms}


def _row(c: Compared) -> tuple[str, ...]:
    return (
        f"{c.arm} − {c.against}",
        c.verdict + (f" ({c.why_open})" if c.why_open else ""),
        _number(c.lead, "+.2f"),
        _interval(c),
        " ".join(f"{lead:+.1f}" for lead in c.leads),
        _number(c.published, "+.2f"),
        f"{100 * (c.better or 0):.0f} % / {100 * (c.worse or 0):.0f} %",
        " / ".join(f"{gain:+.1f}" for gain in c.gains) if c.gains else "—",
    )


def _means(claim: ClaimEvidence) -> str:
    """Mean and deviation of each arm over the seeds that all arms with runs have: those of other seeds' clients cannot be compared."""
    ran = [arm for arm in claim.arms if arm.means]
    seeds = sorted(set.intersection(*(set(arm.means) for arm in ran))) if ran else []
    values = {arm.arm: [arm.means[seed] for seed in seeds] for arm in ran if len(seeds) > 1}
    return "; ".join(f"{arm} {np.mean(own):.2f} ± {np.std(own, ddof=1):.2f}" for arm, own in values.items())


def _weakest(claim: ClaimEvidence) -> str:
    """The smallest lead with its interval, since a claim stands with its weakest comparison."""
    weakest = min(_measured(claim), key=lambda c: c.lead or 0.0, default=None)
    return f"{weakest.lead:+.2f} ({_interval(weakest)}) over {weakest.against}" if weakest else "not run"


def _runs(claim: ClaimEvidence) -> str:
    return f"{claim.cost.finished}/{claim.cost.runs}" if claim.cost.runs else "the judge's"


def _hours(claim: ClaimEvidence) -> str:
    left = claim.cost.seconds_left
    return "—" if left is None else f"{left / HOUR:.2g}" if left else "0"


def _interval(c: Compared) -> str:
    return "—" if c.low is None or c.high is None else f"{c.low:+.2f} to {c.high:+.2f}"


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else f"{value:{form}}"
