"""An audit as a table, a page for the person who has to sign, and a picture of the best reconstructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedtailor.auditing.audit import Audit
from fedtailor.auditing.canary import CONFIDENCE
from fedtailor.auditing.finding import ASKED, IN_PART, NO, STRONG, YES, Finding
from fedtailor.auditing.inversion import Reconstruction
from fedtailor.auditing.views import OTHERS
from fedtailor.extras import extra
from fedtailor.report.sheets import Sheet
from fedtailor.report.templates import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE, PAGE = "audit.png", "audit.md"
BY = {"server": "By the server", "holder of the model": "By the holder of a personal model"}
SHOWN = 8  # reconstructions in the picture
SCORES = {
    "inversion": "correlation of the reconstruction with the true sample (1: the sample itself); chance: that of the nearest of as many "
    "other samples",
    "labels": "area under the ROC curve: the chance that a class the client has looks more present than one it does not have",
    "membership": "area under the ROC curve: the chance that a training sample looks more like one than a test sample does",
    "canary": f"lower bound on ε at {CONFIDENCE:.0%} confidence",
}
VERDICTS = (
    f"Verdict: {YES}, from {', '.join(f'{score} for {name}' for name, score in STRONG.items())} on; {IN_PART}, if the interval is above "
    "chance."
)
SEEN_BY_OTHERS = (
    f"{OTHERS}: who get the mean and know all replies but one. Of what noise is added to, the server sees more."
)
NOT_MEASURED = (
    "Attackers who change what they send (a server that is not only curious), who combine many rounds, or who work together.",
    "Reconstruction of texts, and by search from more than one step on few samples, the case that is easiest for an attacker.",
    "What is learned from message sizes, times and logs.",
    "A real federation. The samples were on this machine, and nothing is known here of how keys, disks and people are looked after.",
)


def audit_sheet(audit: Audit) -> Sheet:
    """One row per measurement, by question and by who sees what."""
    header = ("question", "from", "seen by", "how", "score", "chance", "verdict")
    found = [f for measurement in ASKED for f in audit.findings if f.measurement == measurement]
    rows = [(f.measurement, f.entry, f.seen_by, _how(f), *_numbers(f), f.verdict) for f in found]
    asked, seen = {f.measurement for f in found}, {f.seen_by for f in found}
    notes = [VERDICTS, *(f"{name}: {meaning}." for name, meaning in SCORES.items() if name in asked)]
    return Sheet("What was measured", header, rows, [*notes, *([SEEN_BY_OTHERS] if OTHERS in seen else [])], left=4)


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
    """Describe the setting; for membership, also how many members are caught at 1 % false alarms."""
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
        for who in dict.fromkeys(f.seen_by for f in found):
            worst = max((f for f in found if f.seen_by == who), key=lambda f: (f.broken, f.leaks, f.score))
            said.append(f"{question} {BY.get(who, f'By {who}')}: {_answer(worst)}.")
        said += [] if found else [f"{question} Not measured."]
    return said


def _answer(worst: Finding) -> str:
    if worst.measurement == "canary":
        return f"ε ≥ {worst.score:.2f} from {worst.entry}, {worst.verdict}"
    if not worst.leaks:
        return worst.verdict.replace(NO, "not by the attacks tried")
    return f"{worst.verdict} (from {worst.entry}: {worst.score:.2f}, chance {worst.chance:.2f})"


def audit_page(audit: Audit, command: str) -> str:
    """The audit as Markdown."""
    picture = PICTURE if (audit.path / PICTURE).exists() else ""
    said = {"summary": summary(audit), "measured": audit_sheet(audit), "gaps": gaps(audit)}
    return markdown("audit.md", about=audit.about, command=command, picture=picture, **said)


def gaps(audit: Audit) -> list[str]:
    """What the audit says nothing about."""
    said = []
    if audit.left:
        said.append(f"For lack of time: {'; '.join(audit.left)}. The same command goes on with these.")
    if not audit.about["personal"]:
        said.append("Personal models: the run did not save them (save_models=false).")
    if audit.about["samples"]:
        said.append(
            "Single replies: clients have spent their privacy and send nothing more. The run was done again instead."
        )
    elif audit.untouched:
        said.append(f"No attack here uses {', '.join(audit.untouched)}, which also leave a client.")
    return [*said, *NOT_MEASURED]


def audit_picture(audit: Audit) -> bool:
    """Draw true samples above their reconstructions; return False, and draw nothing, if nothing was reconstructed."""
    chosen = _varied(sorted(audit.reconstructions, key=lambda pair: -pair.correlation))
    if not chosen:
        (audit.path / PICTURE).unlink(missing_ok=True)  # of an earlier run in this folder
        return False
    with extra("report", "A picture"):
        from matplotlib.figure import Figure

        from fedtailor.report.pictures import save
    figure = Figure(figsize=(1.7 * len(chosen), 4.2), layout="constrained")
    axes = figure.subplots(2, len(chosen), squeeze=False)
    for (above, below), pair in zip(axes.T, chosen, strict=True):
        for place, sample in ((above, pair.true), (below, pair.found)):
            _show(place, sample, float(pair.true.min()), float(pair.true.max()))
        above.set_title(f"{pair.entry}\n{pair.setting.removeprefix('one step on a ')}", fontsize=8)
        below.set_xlabel(f"{pair.correlation:.2f}", fontsize=8)
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
    each = math.ceil(SHOWN / max(1, len(groups)))
    return [pair for own in groups.values() for pair in own[:each]][:SHOWN]


def _show(axes: Axes, sample: np.ndarray, low: float, high: float) -> None:
    """An image as it looks, anything else as a curve; both scaled to the range of the true sample."""
    reach = max(high - low, 1e-9)
    axes.set(xticks=[], yticks=[])
    if sample.ndim == 3 and len(sample) in (1, 3):
        scaled = np.clip((sample - low) / reach, 0, 1)
        axes.imshow(scaled.transpose(1, 2, 0).squeeze(), cmap="gray", vmin=0, vmax=1)
        return
    axes.plot(np.clip(sample.reshape(-1), low - reach, low + 2 * reach), lw=0.8, color="black")
    axes.set_ylim(low - 0.1 * reach, low + 1.1 * reach)
