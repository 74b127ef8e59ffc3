"""An audit as a table, a page for the person who has to sign, and a picture of the best reconstructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtailor.auditing.audit import Audit
from fedtailor.auditing.canary import CONFIDENCE
from fedtailor.auditing.finding import ASKED, IN_PART, NO, STRONG, YES, Finding
from fedtailor.auditing.inversion import Reconstruction
from fedtailor.auditing.views import OTHERS
from fedtailor.extras import extra
from fedtailor.report.sheets import Sheet, as_markdown, escape_markdown

PICTURE, PAGE = "audit.png", "audit.md"
BY = {"server": "by the server", "holder of the model": "by the holder of a personal model"}
SHOWN = 8  # reconstructions in the picture
SCORES = {
    "inversion": "correlation of the reconstruction with the true sample (1: the sample itself); chance: that of the nearest of as many "
    "other samples",
    "labels": "area under the ROC curve: the chance that a class the client has looks more present than one it does not have",
    "membership": "area under the ROC curve: the chance that a training sample looks more like one than a test sample does",
    "canary": f"lower bound on ε at {CONFIDENCE:.0%} confidence",
}
NOT_MEASURED = (
    "Attackers who change what they send (a server that is not only curious), who combine many rounds, or who work together.",
    "Reconstruction of texts, and by search from more than one step on few samples, the case that is easiest for an attacker.",
    "What is learned from message sizes, times and logs.",
    "A real federation. The samples were on this machine, and nothing is known here of how keys, disks and people are looked after.",
)


def audit_sheet(audit: Audit) -> Sheet:
    """One row per measurement, by question and by who sees what."""
    header = ("question", "from", "seen by", "how", "score", "chance", "verdict")
    order = {measurement: place for place, measurement in enumerate(ASKED)}
    found = sorted(audit.findings, key=lambda finding: order[finding.measurement])
    rows = [(f.measurement, f.entry, f.seen_by, _how(f), *_numbers(f), f.verdict) for f in found]
    notes = [f"Verdict: {YES}, from {_strong()} on; {IN_PART}, if the interval is above chance.", *_meanings(found)]
    if any(finding.seen_by == OTHERS for finding in found):
        notes.append(
            f"{OTHERS}: who get the mean and know all replies but one. Of what noise is added to, the server sees more."
        )
    return Sheet("What was measured", header, rows, notes, left=4)


def _strong() -> str:
    return ", ".join(f"{score} for {name}" for name, score in STRONG.items())


def _meanings(found: Sequence[Finding]) -> list[str]:
    return [f"{name}: {meaning}." for name, meaning in SCORES.items() if any(f.measurement == name for f in found)]


def short_sheet(audit: Audit) -> Sheet:
    """The same rows without how they were measured, narrow enough for a terminal."""
    whole = audit_sheet(audit)
    rows = [(question, entry, seen, how.partition(";")[0], *rest) for question, entry, seen, how, *rest in whole.rows]
    return replace(whole, rows=rows, notes=())


def _numbers(finding: Finding) -> tuple[str, str]:
    if finding.measurement == "canary":
        return f"ε ≥ {finding.score:.2f}", "0"
    return f"{finding.score:.2f} [{finding.low:.2f}, {finding.high:.2f}]", f"{finding.chance:.2f}"


def _how(finding: Finding) -> str:
    """The setting, and of membership how many are caught where almost no stranger is taken for a member."""
    caught = finding.details.get("tpr_at_1_percent_fpr")
    if caught is None:
        return finding.setting
    low, high = finding.details["tpr_low"], finding.details["tpr_high"]
    return f"{finding.setting}; at 1 % false alarms {caught:.1%} are caught [{low:.1%}, {high:.1%}]"


def summary(audit: Audit) -> list[str]:
    """One sentence per question and observer: the worst case."""
    said = []
    for measurement, question in ASKED.items():
        found = [f for f in audit.findings if f.measurement == measurement]
        if not found:
            said.append(f"{question} Not measured.")
        for who in dict.fromkeys(f.seen_by for f in found):
            worst = max((f for f in found if f.seen_by == who), key=lambda f: (f.broken, f.leaks, f.score))
            said.append(f"{question} {_capital(BY.get(who, f'by {who}'))}: {_answer(worst)}.")
    return said


def _answer(worst: Finding) -> str:
    if worst.measurement == "canary":
        return f"ε ≥ {worst.score:.2f} from {worst.entry}, {worst.verdict}"
    if not worst.leaks:
        return worst.verdict.replace(NO, "not by the attacks tried")
    return f"{worst.verdict} (from {worst.entry}: {worst.score:.2f}, chance {worst.chance:.2f})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def audit_page(audit: Audit, command: str) -> str:
    """The audit as Markdown."""
    about = audit.about
    lines = [
        f"# What leaks from this run of {escape_markdown(about['method'])}",
        "",
        f"{about['clients']} clients; rounds: {about['round']}. What leaves a client: "
        f"{escape_markdown(', '.join(about['up']) or 'nothing')}. The attacks are by the owner of the run, in simulation: `{command}`.",
        "",
        *_promise(audit),
        "**A failed attack is no proof of safety.** Others may have better attacks. Only a guarantee that is proven, such as differential "
        "privacy with a small ε, bounds what any attack can do.",
        "",
        "## In short",
        "",
        *(f"- {escape_markdown(line)}" for line in summary(audit)),
        "",
        as_markdown(audit_sheet(audit), level=2),
    ]
    if (audit.path / PICTURE).exists():
        lines += ["## The best reconstructions", "", f"![true samples and their reconstructions]({PICTURE})", ""]
        lines += ["This picture, and audit.json, hold training samples of clients. Do not pass them on.", ""]
    return "\n".join(
        [*lines, "## What was not measured", "", *(f"- {escape_markdown(line)}" for line in gaps(audit)), ""]
    )


def _promise(audit: Audit) -> list[str]:
    """The differential privacy that the run claims, and what it does not cover."""
    claim, uncovered = audit.about["privacy"], audit.about["uncovered"]
    if not claim:
        return ["The run promises no differential privacy.", ""]
    said = [f"The run promises differential privacy of clients for {', '.join(claim['entries'])}"]
    said += [f": ε = {claim['epsilon']:.3g} at δ = {claim['delta']:.2g}" if claim["epsilon"] else ", but has no noise"]
    said += [". The noise is added by the server, which sees the replies before it."]
    if uncovered:
        said.append(f" Not covered: {', '.join(uncovered)}.")
    return [escape_markdown("".join(said)), ""]


def gaps(audit: Audit) -> list[str]:
    """What the audit says nothing about."""
    said = []
    if audit.left:
        said.append(f"For lack of time: {'; '.join(audit.left)}. The same command goes on with these.")
    if not audit.about["personal"]:
        said.append("Personal models: the run did not save them (save_models=false).")
    if audit.untouched:
        said.append(f"No attack here uses {', '.join(audit.untouched)}, which also leave a client.")
    return [*said, *NOT_MEASURED]


def audit_picture(audit: Audit) -> bool:
    """Draw true samples above their reconstructions; return False, and draw nothing, if nothing was reconstructed."""
    best = sorted(audit.reconstructions, key=lambda pair: -pair.correlation)
    chosen = _varied(best)
    if not chosen:
        (audit.path / PICTURE).unlink(missing_ok=True)  # of an earlier run in this folder
        return False
    with extra("report", "A picture"):
        from matplotlib.figure import Figure

        from fedtailor.report.pictures import save
    figure = Figure(figsize=(1.7 * len(chosen), 4.2), layout="constrained")
    axes = figure.subplots(2, len(chosen), squeeze=False)
    for column, pair in enumerate(chosen):
        limits = float(pair.true.min()), float(pair.true.max())
        for row, sample in enumerate((pair.true, pair.found)):
            _show(axes[row, column], sample, limits)
        axes[0, column].set_title(f"{pair.entry}\n{pair.setting.removeprefix('one step on a ')}", fontsize=8)
        axes[1, column].set_xlabel(f"{pair.correlation:.2f}", fontsize=8)
    axes[0, 0].set_ylabel("true sample")
    axes[1, 0].set_ylabel("reconstructed")
    figure.suptitle("Best reconstructions, with their correlation", fontsize=10)
    save(figure, audit.path / PICTURE)
    return True


def _varied(best: Sequence[Reconstruction]) -> list[Reconstruction]:
    """Some of each entry and setting in turn, so that one attack does not fill the picture."""
    groups: dict[tuple[str, str], list[Reconstruction]] = {}
    for pair in best:
        groups.setdefault((pair.entry, pair.setting), []).append(pair)
    each = max(1, math.ceil(SHOWN / max(1, len(groups))))
    return [pair for own in groups.values() for pair in own[:each]][:SHOWN]


def _show(axes: object, sample: np.ndarray, limits: tuple[float, float]) -> None:
    """An image as it looks, anything else as a curve; both scaled to the range of the true sample."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    low, high = limits[0], max(limits[1], limits[0] + 1e-9)
    axes.set_xticks([])
    axes.set_yticks([])
    if sample.ndim == 3 and len(sample) in (1, 3):
        scaled = np.clip((sample - low) / (high - low), 0, 1)
        axes.imshow(scaled.transpose(1, 2, 0).squeeze(), cmap="gray", vmin=0, vmax=1)
        return
    axes.plot(np.clip(sample.reshape(-1), low - (high - low), high + (high - low)), lw=0.8, color="black")
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
