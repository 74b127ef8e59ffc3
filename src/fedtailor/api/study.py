"""Compare several methods under one protocol, in one table and one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedtailor.analysis.results import Result, find_runs
from fedtailor.api.plan import USUAL, plan
from fedtailor.api.results import Results
from fedtailor.api.run import AnyNet, Data, Run, given, new_folder, values_of
from fedtailor.api.tune import tune_all
from fedtailor.attacks import Attack
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.callbacks import Callbacks
from fedtailor.experiment.config import Config, Settings
from fedtailor.experiment.hostile import Given
from fedtailor.experiment.options import RunOptions, keywords_of
from fedtailor.extras import can_draw
from fedtailor.files import replace_text
from fedtailor.methods import Method
from fedtailor.report.clients import client_picture
from fedtailor.report.sheets import as_csv
from fedtailor.report.tables import brief_sheet
from fedtailor.robust import RobustMean
from fedtailor.tuning.tune import TUNING


@keywords_of(Settings)
def compare(
    federation: Data,
    methods: Sequence[str | Method] = USUAL,
    *,
    seeds: int | Sequence[int] = 1,
    tune: int = 0,
    net: AnyNet | None = None,
    head: str | None = None,
    out: str | PathLike[str] | None = None,
    callbacks: Callbacks | None = None,
    privacy: Mapping[str, Any] | None = None,
    robust: RobustMean | Given | None = None,
    attack: Attack | Given | None = None,
    **options: Unpack[RunOptions],
) -> Study:
    """Run several methods with the same seeds on one federation, each into a folder of its own below `out`.

    `seeds` is a number of seeds (3 means 0, 1, 2) or the seeds themselves; the other arguments are those of `ft.run`. With `tune`, each
    method first gets so many trials to find its settings, as `ft.tune` does with the first seed. Making the same call with the same
    `out` resumes an interrupted comparison.

    >>> study = ft.compare(federation, ["local", "fedavg", ft.FedAH(eta_w=0.5)], seeds=3, out="runs/study")
    """
    if "seed" in options:
        raise FedTailorError("A comparison has seeds=…, such as seeds=3 or seeds=[5, 6], in place of seed.")
    path = Path(out) if out is not None else new_folder("comparison")
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if not methods or not chosen:
        raise FedTailorError("A comparison needs at least one method and one seed.")
    values = values_of(federation, net, head, options, privacy=privacy, robust=robust, attack=attack)
    tuned = {}
    if tune:
        first = {**values, "seed": chosen[0]}
        tuned = tune_all(
            first, methods, tune, path / TUNING, *given(federation, net), fixed=options, callbacks=callbacks
        )
    plans = plan(values, methods, chosen, path, {name: found.values for name, found in tuned.items()})
    return carry_out_all(plans, path, *given(federation, net), callbacks=callbacks)


class Study(Results):
    """A folder of runs, to be compared; `ft.load` opens one."""

    def __init__(self, path: str | PathLike[str], runs: Sequence[Run]) -> None:
        super().__init__(path)
        self.runs = list(runs)

    @property
    def results(self) -> list[Result]:
        return [result for run in self.runs for result in run.results]

    @property
    def state(self) -> str:
        """The state of the study: finished if every run is, else the state of the first that is not."""
        return next((run.state for run in self.runs if run.state != "finished"), "finished")

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, name: str) -> Run:
        """Return a run by the name of its folder, such as study["fedrep-s0"]."""
        names = {run.path.name: run for run in self.runs}
        if name not in names:
            raise FedTailorError(f"There is no run '{name}'.{nearest(name, names)} There are: {', '.join(names)}.")
        return names[name]

    def write(self) -> None:
        """Write the table and the pictures of all runs."""
        results = self.results
        replace_text(self.path / "table.csv", as_csv(brief_sheet(results)))
        if can_draw():
            self.plot()
            client_picture(results, self.path / "clients.png")

    def __repr__(self) -> str:
        runs = [f"  {run.path.name}: {run.state}" for run in self.runs]
        return "\n".join([f"Study '{self.path}': {len(runs)} runs, {self.state}", *runs])


def carry_out_all(
    plans: Mapping[Path, Config],
    path: Path,
    federation: Federation | None = None,
    net: nn.Module | None = None,
    *,
    callbacks: Callbacks | None = None,
    command: str = "",
) -> Study:
    """Start or resume every run of a plan until one is interrupted."""
    for folder in plans:
        run = Run(folder)
        if run.folder.begun:
            run.folder.refuse_other(plans[folder])  # check all before anything is run
    runs = []
    for folder, config in plans.items():
        with Run(folder, federation, net).carry_out(config, callbacks, command) as run:
            runs.append(run)
        if run.state != "finished":
            break
    study = Study(path, runs)
    study.write()
    return study


def load(
    path: str | PathLike[str], *, federation: Federation | None = None, net: nn.Module | None = None
) -> Run | Study:
    """Open a run folder, or the folder of a comparison.

    Pass a federation or net that was made in Python to resume the run or to get its models; tables and pictures do not need it.
    """
    folders = find_runs([Path(path)])
    if folders == [Path(path)]:
        return Run.open(path, federation, net)
    return Study(path, [Run.open(folder, federation, net) for folder in folders])
