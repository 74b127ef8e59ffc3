"""The runs of a preset, several at a time in separate processes; finished runs are kept, interrupted ones resumed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import Stop, polite_stop
from fedtailor.experiment.run import carry_out as run
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.presets import Overrides, Preset, PresetCell, Term

STATE_FIGURES = {"by-label", "surface"}  # drawn from models, so their runs keep the last checkpoint
POLL = 0.2  # seconds between two checks of the processes

# A fork server that has imported torch, and what draws and scores, forks in milliseconds; without one (Windows), each process imports anew.
CONTEXT: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
PRELOADED = ["fedtailor.papers.grid", "fedtailor.report.pictures", "sklearn.metrics"]
CONTEXT.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True)
class Job:
    """One run of a grid: an ordinary run folder below OUT/cells."""

    folder: Path
    overrides: Overrides
    keeps_state: bool  # its last checkpoint is needed later

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config(self) -> Config:
        return Config.load(words=self.overrides)

    @property
    def steps(self) -> int:
        return self.config.settings.rounds + self.config.method.closing_steps

    @property
    def begun(self) -> bool:
        return RunFolder(self.folder).begun

    @property
    def finished(self) -> bool:
        return self.begun and RunFolder(self.folder).state == "finished"

    @property
    def done(self) -> int:
        """Rounds and closing steps done so far."""
        return len(RunFolder(self.folder).records()) if self.begun else 0


@dataclass
class GridStatus:
    """The state of a grid; `gaps` tells why a run could not be done."""

    jobs: list[Job]
    running: list[Job] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)


class RunGrid:
    """The runs that a preset's cells need, each once, however many cells use it."""

    def __init__(self, preset: Preset, out: Path) -> None:
        self.preset = preset
        self.out = out
        keeps = not STATE_FIGURES.isdisjoint(preset.figures)
        self._jobs: dict[Overrides, Job] = {}
        for cell in preset.cells:
            measure = MEASURES[cell.measure]
            for seed in preset.seed_numbers if measure.needs_run else ():
                for part in cell.parts:
                    self._add(part, seed, keeps or measure.needs_models)

    def _add(self, part: Term, seed: int, keeps_state: bool) -> None:
        overrides = with_seed(part.overrides, seed)
        folder = self.out / "cells" / f"{slug(part.name)}-s{seed}"
        known = self._jobs.get(overrides, Job(folder, overrides, keeps_state))
        self._jobs[overrides] = replace(known, keeps_state=known.keeps_state or keeps_state)

    @property
    def jobs(self) -> list[Job]:
        return list(self._jobs.values())

    def runs(self, cell: PresetCell, seed: int) -> list[Job]:
        """Return the run of each part of a cell."""
        return [self._jobs[with_seed(part.overrides, seed)] for part in cell.parts]

    def check(self) -> None:
        """Refuse a folder that holds runs of other settings."""
        for job in self.jobs:
            if job.begun:
                RunFolder(job.folder).refuse_other(job.config)


def carry_out(
    jobs: Iterable[Job], workers: int, watch: Callable[[GridStatus], None], stop: Stop, gaps: dict[str, str]
) -> GridStatus:
    """Carry out the unfinished runs; a run that fails leaves a gap and the others go on."""
    progress = GridStatus(list(jobs), gaps=dict(gaps))
    waiting = [job for job in progress.jobs if not job.finished and job.name not in gaps]
    at_work: dict[str, tuple[Job, BaseProcess, Connection]] = {}
    while (waiting and not stop.asked) or at_work:
        while waiting and len(at_work) < workers and not stop.asked:
            job = waiting.pop(0)
            at_work[job.name] = (job, *_begin(job))
        time.sleep(POLL)
        for name, (_, process, news) in list(at_work.items()):
            if not process.is_alive():
                del at_work[name]
                reason = _reason(process, news)
                if reason and not stop.asked:
                    progress.gaps[name] = reason
        progress.running = [job for job, _, _ in at_work.values()]
        watch(progress)
    return progress


def _begin(job: Job) -> tuple[BaseProcess, Connection]:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=run_job, args=(job, sender))
    process.start()
    sender.close()
    return process, receiver


def _reason(process: BaseProcess, news: Connection) -> str:
    """Return why a process did not finish its run, or an empty text."""
    process.join()
    try:
        return str(news.recv())
    except EOFError:
        return f"its process ended unexpectedly (exit code {process.exitcode})"


def run_job(job: Job, sender: Connection) -> None:
    """Start or resume one run in a worker process, and send what went wrong, or an empty text."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logs = job.folder.parent.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"{job.name}.txt", delay=True)
    logging.getLogger().addHandler(handler)
    with polite_stop(lambda text: None) as stop:
        try:
            carry_on(job, stop)
            sender.send("" if job.finished else "interrupted")
        except FedTailorError as error:
            sender.send(str(error))
        except Exception as error:
            logging.getLogger("fedtailor").exception("%s failed", job.name)
            sender.send(f"{type(error).__name__}: {error} (see {logs / job.name}.txt)")


def carry_on(job: Job, stop: Stop | None = None) -> None:
    run(job.config, job.folder, stop=stop)
    if job.finished and not job.keeps_state:
        shutil.rmtree(RunFolder(job.folder).checkpoints, ignore_errors=True)  # gigabytes over a grid


def _end_with_parent() -> None:
    """End this process when the grid is killed: two processes must never write into one folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def with_seed(overrides: Overrides, seed: int) -> Overrides:
    return (*overrides, f"seed={seed}")


def slug(text: str) -> str:
    return "-".join(re.findall(r"[\w.]+", text.lower()))
