"""Measure what leaks from a run: attacks on it by its owner, in simulation."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from torch import nn

from fedtailor.api.run import Run
from fedtailor.auditing.audit import MINUTES, Audit, OnUnit, about, carry_out
from fedtailor.auditing.subject import Subject
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.journal import mark_of
from fedtailor.experiment.simulation import Simulation
from fedtailor.extras import can_draw
from fedtailor.files import replace_text
from fedtailor.report.audit import PAGE, audit_page, audit_picture


def audit(
    run: Run | str | PathLike[str],
    *,
    minutes: float = MINUTES,
    federation: Federation | None = None,
    net: nn.Module | None = None,
    on_unit: OnUnit | None = None,
) -> Audit:
    """Attack a finished run for about so many minutes, and write what leaked to audit.md, audit.json and audit.png in its folder.

    It needs the run's data again: a federation or net made in Python is given with it. The same call goes on with what time did not
    allow. `on_unit` is called with the name of each measurement when it begins, and again with what it found.

    >>> found = ft.audit("runs/a", minutes=5)
    >>> verdicts = [(f.entry, f.measurement, f.score, f.verdict) for f in found.findings]
    """
    opened = run if isinstance(run, Run) else Run.open(run, federation, net)
    if opened.state != "finished":
        raise FedTailorError(
            f"The run in '{opened.path}' is {opened.state}: an audit is of a finished run. Carry it on with:  {opened.folder.how_to_resume}"
        )
    simulation = opened.restored()
    subject = Subject(simulation, _personal(opened, simulation))
    mark = mark_of(opened.folder.metrics)
    found = Audit.read(opened.path, about(subject, "" if mark is None else mark.sha256))
    carry_out(subject, found, minutes, on_unit)
    if can_draw():
        audit_picture(found)
    replace_text(found.path / PAGE, audit_page(found, f"fedtailor audit {Path(found.path).name}"))
    return found


def _personal(run: Run, simulation: Simulation) -> Callable[[int], nn.Module] | None:
    """The personal models as the run ended with them: those that it saved, else as they are after the last round if that is the end."""
    saved = run.saved
    if len(saved.numbers) == len(simulation.everyone):
        return saved.module
    return None if simulation.method.closing_steps else simulation.personal
