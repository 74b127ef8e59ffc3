"""Onboarding: a client that joins after training gets its personal model by its method's rule."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedtailor.data.description import Description
from fedtailor.data.federation import Federation
from fedtailor.data.task import CLASSES
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import load_latest
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import Build, simulation_of
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.learning.scoring import Score


@dataclass(frozen=True)
class Newcomer:
    """The result of onboarding one client."""

    model: nn.Module
    before: Score  # with the server's payload, before any training of its own
    after: Score


def onboard(simulation: Simulation, newcomer: Federation) -> Newcomer:
    """Onboard one new client, given as a federation of one, into a finished simulation, which does not change."""
    if len(newcomer.clients) != 1:
        raise FedTailorError(f"A newcomer is a federation of one client, but this one has {len(newcomer.clients)}.")
    newcomer = as_member(newcomer, simulation.federation)
    modules = simulation.worker.modules
    worker = Worker(newcomer, simulation.method, modules.architecture, modules.head, simulation.protocol)
    payload = simulation.method.welcome(simulation.server, worker.hello(0))
    before = worker.evaluate(0, 0, payload)
    worker.onboard(0, payload)
    return Newcomer(worker.personal(0, 0, payload), before, worker.evaluate(0, 0, payload))


def as_member(newcomer: Federation, seen: Federation) -> Federation:
    """Return the newcomer's data with the federation's description; classes are matched by name where both have names."""
    own, wanted = newcomer.description, seen.description
    misfit = wanted.misfit(own)
    if misfit:
        raise FedTailorError(f"The newcomer does not fit the federation: {misfit}.")
    if own.columns != wanted.columns:
        raise FedTailorError(
            "The newcomer's table was scaled or encoded by itself. Read it as the federation's:  "
            "from_table(…, description=federation.description)"
        )
    if own.kind != wanted.kind or (wanted.kind not in CLASSES and own.classes != wanted.classes):
        raise FedTailorError(
            f"The newcomer's task is {own.kind} ({own.classes} outputs), but that of the run is {wanted.kind} ({wanted.classes})."
        )
    if own.vocabulary > wanted.vocabulary:
        raise FedTailorError(
            f"The newcomer has token ids up to {own.vocabulary - 1}, but the run knows {wanted.vocabulary} of them."
        )
    if own.labels and wanted.labels:
        unknown = [name for name in own.labels if name not in wanted.labels]
        if unknown:
            raise FedTailorError(f"The newcomer has labels that the run does not know: {', '.join(unknown)}.")
        place = torch.tensor([wanted.labels.index(name) for name in own.labels])
        client = newcomer.clients[0]
        train, test = (replace(split, y=place[split.y]) for split in (client.train, client.test))
        return Federation([replace(client, train=train, test=test)], wanted, newcomer.server)
    if own.classes > wanted.classes:
        raise FedTailorError(
            f"The newcomer has labels up to {own.classes - 1}, but the run knows {wanted.classes} classes."
        )
    return replace(newcomer, description=wanted)


def finished_simulation(path: Path, build: Build = simulation_of) -> Simulation:
    """A finished run as it stood after its last round, all of it in this process."""
    folder = RunFolder.open(path)
    config = Config.load(folder.config)
    settings = replace(config.settings, engine="inline", ray_address="")
    checkpoint = load_latest(folder.checkpoints, config.settings.device)
    if checkpoint is None:
        raise FedTailorError(f"'{path}' has no checkpoint to join. Carry the run on with:  {folder.how_to_resume}")
    simulation = build(replace(config, settings=settings))
    simulation.restore(checkpoint.round, checkpoint.server, checkpoint.clients, folder.records())
    return simulation


def read_newcomer(path: Path, words: Iterable[str], description: Description | None = None) -> Federation:
    """Read all samples of a data set as one client's; `words` (data=…, data.path=…) override the run's config.

    They are encoded as the run's `description` says. The column that named the clients of the run need not be there.
    """
    config = Config.load(RunFolder.open(path).config, words)
    try:
        return config.alone("newcomer", description)
    except FedTailorError:
        if not getattr(config.data, "client", ""):
            raise
    without: Any = replace(config.data, client="")  # type: ignore[type-var]
    return replace(config, data=without).alone("newcomer", description)


def newcomer_words(path: Path, data: str) -> list[str]:
    """Return overrides that name a newcomer's file, folder or data set; a CSV file holds texts if those of the run do."""
    texts = Config.load(RunFolder.open(path).config).data.name == "text-csv"
    return data_words(data, csv="text-csv" if texts else "table")


def data_words(data: str, csv: str = "table") -> list[str]:
    """Return overrides that name a file or folder by its kind, or a data set by its name."""
    if not data:
        return []
    path = Path(data)
    ending = path.suffix if path.suffix != ".gz" else "".join(path.suffixes[-2:])
    kind = {".csv": csv, ".csv.gz": csv, ".parquet": "table", ".npz": "arrays"}.get(ending)
    if kind is None and not os.path.isdir(path):  # unlike Path.is_dir, it takes any text
        return [f"data={data}"]
    if kind is None:
        kind = "arrays" if (path / "x.npy").exists() else "folder"
    return [f"data={kind}", f"data.path={path.resolve()}"]
