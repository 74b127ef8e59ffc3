"""Compare several methods under one protocol, in one table and one picture."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedtailor.api.results import Results
from fedtailor.api.run import AnyNet, Data, Run, given, new_folder, set_method, values_of
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.callbacks import Callbacks
from fedtailor.experiment.config import ASIDE, Config, Settings
from fedtailor.experiment.options import RunOptions, keywords_of
from fedtailor.files import replace_text
from fedtailor.methods import Method
from fedtailor.registry import differing
from fedtailor.report.clients import client_picture
from fedtailor.report.results import Result, find_runs
from fedtailor.report.tables import comparison_csv

log = logging.getLogger("fedtailor")

USUAL = ("local", "fedavg", "fedper", "fedrep")  # the methods compared by default


@keywords_of(Settings)
def compare(
    federation: Data,
    methods: Sequence[str | Method] = USUAL,
    *,
    seeds: int | Sequence[int] = 1,
    net: AnyNet | None = None,
    head: str | None = None,
    out: str | PathLike[str] | None = None,
    callbacks: Callbacks | None = None,
    **options: Unpack[RunOptions],
) -> Study:
    """Run several methods with the same seeds on one federation, each into a folder of its own below `out`.

    `seeds` is a number of seeds (3 means 0, 1, 2) or the seeds themselves; the other arguments are those of `ft.run`. Making
    the same call with the same `out` resumes an interrupted comparison.

    >>> study = ft.compare(federation, ["local", "fedavg", ft.FedAH(eta_w=0.5)], seeds=3, out="runs/study")  # doctest: +SKIP
    """
    if "seed" in options:
        raise FedTailorError("A comparison has seeds=…, such as seeds=3 or seeds=[5, 6], in place of seed.")
    path = Path(out) if out is not None else new_folder("comparison")
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    values = values_of(federation, net, head, options)
    return carry_out_all(plan(values, methods, chosen, path), path, *given(federation, net), callbacks=callbacks)


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
        replace_text(self.path / "table.csv", comparison_csv(results))
        self.plot()
        client_picture(results, self.path / "clients.png")

    def __repr__(self) -> str:
        runs = [f"  {run.path.name}: {run.state}" for run in self.runs]
        return "\n".join([f"Study '{self.path}': {len(runs)} runs, {self.state}", *runs])


def plan(
    values: Mapping[str, Any], methods: Sequence[str | Method], seeds: Sequence[int], path: Path
) -> dict[Path, Config]:
    """Return the folder and config of each run; all methods get the same data, even if only one needs proxy samples at the server."""
    configs: dict[Path, Config] = {}
    for method in methods:
        for seed in seeds:
            own = copy.deepcopy(dict(values)) | {"seed": seed}
            set_method(own, method)
            config = Config.from_values(own)
            configs[path / f"{run_name(config.method.name, method)}-s{seed}"] = config
    if len({config.server_share for config in configs.values()}) > 1:
        log.warning(
            "One of the methods needs proxy samples: %g %% of the data goes to the server in every run.", 100 * ASIDE
        )
        configs = {folder: config.with_server_share(ASIDE) for folder, config in configs.items()}
    return _completed(configs)


def _completed(configs: Mapping[Path, Config]) -> dict[Path, Config]:
    """Give all runs the net and the number of clients that the samples of the first decide, where none are named."""
    if all(config.complete for config in configs.values()):
        return dict(configs)
    first = next(iter(configs.values())).completed()
    clients = first.settings.clients
    return {
        folder: replace(config, net=first.net, settings=replace(config.settings, clients=clients))
        for folder, config in configs.items()
    }


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


def run_name(name: str, method: str | Method) -> str:
    """Return the folder's name for a method with its own options: fedrep:head_epochs=5 becomes fedrep-head_epochs-5."""
    options = differing(method).partition("(")[2] if isinstance(method, Method) else method.partition(":")[2]
    return "-".join(re.findall(r"[\w.+-]+", f"{name} {options}"))
