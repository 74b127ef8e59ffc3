"""Carry out the runs of a grid at the terminal: how long they will take, then a bar over all of their rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console

from fedtailor.experiment.progress import GridProgress
from fedtailor.experiment.run import polite_stop
from fedtailor.papers.estimate import TimeEstimate, estimate
from fedtailor.papers.grid import GridStatus, Job, carry_out


def estimated(console: Console, jobs: Sequence[Job]) -> TimeEstimate:
    """Measure how long the unfinished runs will take."""
    torch.set_num_threads(1)  # leave the other cores to the runs
    with console.status("measuring how long it takes") as status:
        return estimate(jobs, lambda text: status.update(f"measuring how long it takes: {text}"))


def say_time(console: Console, found: TimeEstimate, workers: int) -> None:
    left = len(found.seconds)
    if left:
        console.print(
            f"About {readable_time(found.total(workers))} for {left} runs, {workers} at a time, on this machine "
            f"(measured by {found.probes} probe rounds of one client)."
        )


def run_all(console: Console, jobs: Sequence[Job], workers: int, expected: TimeEstimate) -> GridStatus | None:
    """Carry out the unfinished runs; return None if interrupted."""
    able = [job for job in jobs if job.name not in expected.gaps]
    bar = GridProgress(console, {job.name: job.steps for job in able})
    bar.update({job.name: job.done for job in able}, [])
    before: list[Job] = []

    def watch(progress: GridStatus) -> None:
        moved = {job.name: job for job in (*before, *progress.running)}  # those that ended have moved, too
        before[:] = progress.running
        bar.update({name: job.done for name, job in moved.items()}, [job.name for job in progress.running])

    with bar.bar, polite_stop(console.print) as stop:
        progress = carry_out(jobs, workers, watch, stop, expected.gaps)
    return None if stop.asked else progress


def readable_time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
