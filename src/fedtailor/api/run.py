"""One run: start it, resume it, look at it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from torch import nn

from fedtailor.analysis.results import read_run
from fedtailor.api.personal import Personal
from fedtailor.api.results import Results
from fedtailor.attacks import Attack
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks, Record
from fedtailor.experiment.checkpoint import read_tensors
from fedtailor.experiment.config import Config, Settings, apply_override, method_overrides, part_values
from fedtailor.experiment.given import (
    PYTHON,
    GivenData,
    GivenNet,
    initial_weights,
    refuse_other_data,
    refuse_other_net,
    weights_digest,
)
from fedtailor.experiment.headline import last_mean
from fedtailor.experiment.hostile import Given
from fedtailor.experiment.lock import locked
from fedtailor.experiment.onboarding import finished_simulation
from fedtailor.experiment.options import RunOptions, keywords_of
from fedtailor.experiment.progress import Progress
from fedtailor.experiment.run import carry_out, polite_stop, simulation_of
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.saved_models import SavedModels
from fedtailor.experiment.simulation import Simulation
from fedtailor.extras import can_draw
from fedtailor.learning.metrics import Asked
from fedtailor.methods import Method, methods
from fedtailor.nets import Architecture
from fedtailor.nets.fitting import fitting_net
from fedtailor.registry import named
from fedtailor.report.data_summary import DataSummary
from fedtailor.report.logged import logged_picture
from fedtailor.robust import RobustMean

log = logging.getLogger("fedtailor")

PATIENCE = 60.0  # seconds to wait for another process that draws

Data = Federation | Config | str
AnyNet = str | Architecture | nn.Module


@keywords_of(Settings)
def run(
    federation: Data,
    method: str | Method | None = None,
    *,
    net: AnyNet | None = None,
    head: str | None = None,
    out: str | PathLike[str] | None = None,
    callbacks: Callbacks | None = None,
    privacy: Mapping[str, Any] | None = None,
    robust: RobustMean | Given | None = None,
    attack: Attack | Given | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a method on a federation, into a run folder with checkpoints, tables and pictures.

    `federation` may also be the name of a data set, or a `Config`. `method` is a name ("fedrep",
    "fedrep:head_epochs=5") or an object (`ft.FedRep(head_epochs=5)`), fedrep by default; `net` a name or any module that returns logits,
    by default one that fits the samples; `head` names the module's head. `out` is the folder, by default a new one below runs/; if it
    already holds this run, the run is resumed; any other run is refused. `callbacks` replace the progress bar. `privacy` has a rule for
    each entry that leaves a client, such as {"body": "dp", "epsilon": 2}. `robust` takes the place of the server's means ("median",
    {"name": "trimmed", "share": 0.3}), and `attack` makes a share of the clients hostile ({"name": "scaled", "share": 0.2}).

    >>> run = ft.run(federation, "fedrep", net=MyModule(), rounds=50, out="runs/mine")
    """
    values = values_of(federation, net, head, options, privacy=privacy, robust=robust, attack=attack)
    set_method(values, method)
    config = Config.from_values(values)
    path = (
        Path(out) if out is not None else new_folder(f"{config.method.name}-{config.data.name}-s{config.settings.seed}")
    )
    return Run(path, *given(federation, net)).carry_out(config, callbacks)


class Run(Results):
    """A run and its folder, finished or not; `ft.load` opens one."""

    def __init__(
        self, path: str | PathLike[str], federation: Federation | None = None, net: nn.Module | None = None
    ) -> None:
        """Open a run folder; pass `federation` and `net` if they were made in Python."""
        super().__init__(path)
        self.folder = RunFolder(self.path)
        self.federation = federation
        self.net = net
        self.live: Simulation | None = None  # the simulation run in this process, if any

    @classmethod
    def open(cls, path: str | PathLike[str], federation: Federation | None = None, net: nn.Module | None = None) -> Run:
        found = cls(path)
        RunFolder.open(found.path)
        found._take(federation, net)
        return found

    def carry_out(self, config: Config, callbacks: Callbacks | None = None, command: str = "") -> Self:
        """Start or resume the run of this config, and draw its pictures; refuse a folder that holds another run."""
        callbacks = [DataSummary(), Progress()] if callbacks is None else callbacks
        with polite_stop(log.warning) as stop:
            self.live = carry_out(config, self.path, callbacks, stop, self._build, command)
        self.draw(fresh=self.live is not None)
        return self

    def resume(
        self,
        *,
        federation: Federation | None = None,
        net: nn.Module | None = None,
        metrics: Sequence[Asked] | None = None,
        callbacks: Callbacks | None = None,
    ) -> Self:
        """Resume an interrupted run, with the numbers of one never interrupted; a finished run is left as it is.

        Pass a federation or net that was made in Python again; it is refused if it is not the one that the run began with. Pass all
        `metrics` again if functions are among them.
        """
        self._take(federation, net)
        config = self.config
        if metrics is not None:
            config = replace(config, settings=replace(config.settings, metrics=tuple(metrics)))
        return self.carry_out(config, callbacks)

    @property
    def nothing_left(self) -> bool:
        """Whether the run was finished before anything was done here."""
        return self.live is None and self.state == "finished"

    @property
    def config(self) -> Config:
        return Config.load(self.folder.config)

    @property
    def state(self) -> str:
        """The state of the run: running, interrupted, failed or finished."""
        return self.folder.state

    @property
    def metrics(self) -> list[Record]:
        """The record of each round and closing step."""
        return self.folder.records()

    @property
    def simulation(self) -> Simulation:
        """The run as a simulation to inspect: the one just run, else restored from its last checkpoint."""
        if self.live is None:
            self.live = self.restored()
        return self.live

    def restored(self) -> Simulation:
        """Return a new simulation in this process, restored from the run's last checkpoint."""
        return finished_simulation(self.path, self._build)

    def personal(self, client: int | str) -> Personal:
        """Return a client's own model, by number or name: it predicts from raw samples, and `module` is the plain module.

        A model that the run saved needs nothing but the run's folder. A net made in Python has to be given to `ft.load`.
        """
        if self.live is not None and self.live.finished:
            federation = self.live.federation
            number = federation.number(client)
            name, description = federation.clients[number].name, federation.description
            return Personal(self.live.personal(number), description, name, self.config.data)
        saved = self.saved
        number = saved.number(client)
        return Personal(saved.module(number), saved.description, saved.name(number), saved.config.data)

    def export(self, to: str | PathLike[str], clients: Sequence[int | str] | None = None) -> list[Path]:
        """Export the personal models of these clients, by default all, to folders below `to` that work without FedTailor.

        Each has the model as model.pt2 (PyTorch), model.onnx (extra `onnx`) and model.safetensors, a model card, and a predict.py.
        """
        from fedtailor.api.export import export_models  # imported here: the exporters of PyTorch are slow to import

        numbers = self.saved.numbers if clients is None else [self.saved.number(client) for client in clients]
        return export_models(self.saved, numbers, Path(to), self._test_data())

    def _test_data(self) -> Federation | None:
        """Return the data that the run was made with, if it can still be read."""
        try:
            known = self.live.federation if self.live is not None else self.federation
            found = self.config.federation() if known is None else known
        except FedTailorError:
            return None
        return found if found.at_hand and found.description == self.saved.description else None

    @property
    def saved(self) -> SavedModels:
        """The personal models that the run saved."""
        return SavedModels(self.path, self.net)

    def draw(self, *, fresh: bool = True) -> None:
        """Draw all pictures in the run folder; without `fresh` only if there are none yet."""
        if (not fresh and (self.path / "accuracy.png").exists()) or not can_draw():
            return
        with locked(self.path, patience=PATIENCE):  # the process that finished the run may be drawing them
            result = read_run(self.path)
            if result.evaluated:
                logged_picture(result, self.path / "logged.png")
                self.plot()  # last: that its picture is there says that all are

    def close(self) -> None:
        """End the processes that the run started; otherwise they end with this object. Models are then read from the folder."""
        if self.live is not None:
            self.live.close()
            self.live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        config, metrics = self.config, self.metrics
        data = config.data.name if not isinstance(config.data, GivenData) else f"{config.settings.clients} clients"
        done = f"round {metrics[-1]['round']} of {config.settings.rounds}" if metrics else "no round yet"
        return (
            f"Run '{self.path}': {named(config.method)} on {data}, {self.state}, {done}{last_mean(metrics)}\n"
            f"  {config.settings!r}, net {config.net!r}"
        )

    # -- what was made in Python ------------------------------------------------------------------------------------------------

    def _take(self, federation: Federation | None, net: nn.Module | None) -> None:
        if federation is not None:
            refuse_other_data(self.config.data, federation)
            self.federation = federation
        if net is not None:
            refuse_other_net(self.config.net, net)
            self.net = net

    def _build(self, config: Config) -> Simulation:
        self._refuse_missing(config)
        return simulation_of(config, self.federation, self._module(config))

    def _refuse_missing(self, config: Config) -> None:
        wanted: dict[str, Any] = {"federation": config.data, "net": config.net}
        have = {"federation": self.federation, "net": self.net}
        missing = [name for name, part in wanted.items() if part.name == PYTHON and have[name] is None]
        if missing:
            again = ", ".join(f"{name}=…" for name in missing)
            raise FedTailorError(
                f"The {' and the '.join(missing)} of this run {'was' if len(missing) == 1 else 'were'} made in Python: "
                f"give {'it' if len(missing) == 1 else 'them'} again with  ft.load({str(self.path)!r}).resume({again})"
            )

    def _module(self, config: Config) -> nn.Module | None:
        """Return the given module with the weights that the run began with."""
        if self.net is None or not isinstance(config.net, GivenNet):
            return None
        state = initial_weights(self.net)
        if weights_digest(state) == config.net.initial:
            return self.net
        kept = read_tensors(self.folder.net) if self.folder.net.exists() else {}
        if weights_digest(kept) != config.net.initial:
            raise FedTailorError(
                f"The initial weights in '{self.folder.net}' are missing or damaged: give a net with the weights that the run began with."
            )
        module = copy.deepcopy(self.net)
        module.load_state_dict(kept, strict=False)  # not strict: lazy layers are not saved
        return module


def values_of(
    federation: Data,
    net: AnyNet | None,
    head: str | None,
    options: Mapping[str, Any],
    **parts: Any,
) -> dict[str, Any]:
    """Return these arguments as config values; `parts` are those that a run need not have."""
    values: dict[str, Any] = {}
    if isinstance(federation, Config):
        values = federation.values()
    elif isinstance(federation, str):
        values["data"] = federation
    else:
        if not isinstance(federation, Federation):
            raise FedTailorError(
                f"federation must be a Federation or a data set's name, but is of type {type(federation).__name__}."
            )
        if "clients" in options:
            raise FedTailorError("clients=… is for a data set by name: a federation has its clients already.")
        values |= {"data": {"name": PYTHON, **asdict(GivenData.of(federation))}, "clients": len(federation.clients)}
        net = fitting_net(federation.task) if net is None else net
    if isinstance(net, nn.Module):
        values["net"] = {"name": PYTHON, **asdict(GivenNet.of(net, head))}
    elif head is not None:
        raise FedTailorError("head=… names a submodule of a net of your own: give that as net=….")
    elif isinstance(net, type):
        raise FedTailorError(f"net is the class {net.__name__}: give an instance, {net.__name__}(…).")
    elif net is not None:
        values["net"] = net if isinstance(net, str) else part_values(net)
    for name, part in parts.items():
        if part is not None:
            values[name] = part if isinstance(part, str | Mapping) else part_values(part)
    return values | dict(options)


def set_method(values: dict[str, Any], method: str | Method | None) -> None:
    if isinstance(method, Method):
        if methods.classes.get(getattr(method, "name", "")) is None:
            raise FedTailorError(
                f"{type(method).__name__} has no name that a config could give it: decorate its class with "
                '@ft.methods.register("name").'
            )
        values["method"] = part_values(method)
    elif isinstance(method, str):
        for word in method_overrides(method):
            apply_override(values, word)
    elif method is not None:
        raise FedTailorError(f"method must be a name or a method's object, but is of type {type(method).__name__}.")


def given(federation: Data, net: AnyNet | None) -> tuple[Federation | None, nn.Module | None]:
    """Return the federation and net that a config can only fingerprint, if such objects were given."""
    return (
        federation if isinstance(federation, Federation) else None,
        net if isinstance(net, nn.Module) else None,
    )


def new_folder(name: str) -> Path:
    """Return runs/NAME, or runs/NAME-2, runs/NAME-3 … if that is taken."""
    folder, count = Path("runs") / name, 2
    while folder.exists():
        folder, count = Path("runs") / f"{name}-{count}", count + 1
    return folder
