"""One experiment from its config to a complete run folder, or from a checkpoint on."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedtailor.engines import WorkerLost
from fedtailor.experiment.checkpoint import Checkpoint, load_latest, save
from fedtailor.experiment.config import Config
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.simulation import Record, Simulation

log = logging.getLogger("fedtailor")

TRIES = 3  # how often a run goes on by itself after it lost a worker

Watch = Callable[[Record], None]
Build = Callable[[Config], Simulation]


@dataclass
class Stop:
    """Set by the first Ctrl-C: the round under way is finished and saved, then the run ends. A second Ctrl-C ends it at once."""

    asked: bool = False


def simulation_of(config: Config) -> Simulation:
    """The simulation that a config describes, with all clients on this machine."""
    settings = config.settings
    return Simulation(
        config.federation(),
        config.method,
        config.net,
        engine=settings.engine,
        workers=settings.workers,
        ray_address=settings.ray_address,
        protocol=settings,
    )


def start(
    config: Config,
    path: Path,
    watch: Watch = lambda record: None,
    stop: Stop | None = None,
    build: Build = simulation_of,
) -> Simulation:
    """Run an experiment into a new folder."""
    simulation = build(config)
    folder = RunFolder.create(path, config)
    folder.append_ledger(simulation)
    if simulation.federation.at_hand:
        folder.write_labels(simulation.federation)
        simulation.federation.plot(path / "labels.png")
    return _persist(simulation, config, folder, watch, stop or Stop(), build)


def resume(
    path: Path, watch: Watch = lambda record: None, stop: Stop | None = None, build: Build = simulation_of
) -> Simulation:
    """Carry on an interrupted run from its last whole checkpoint; the result is that of a run never interrupted."""
    folder = RunFolder.open(path)
    return _persist(None, Config.load(folder.config), folder, watch, stop or Stop(), build)


def _persist(
    simulation: Simulation | None, config: Config, folder: RunFolder, watch: Watch, stop: Stop, build: Build
) -> Simulation:
    """Carry a run out, from its last checkpoint on if it is not here; so again, a few times, when a worker is lost."""
    tries = TRIES
    while True:
        try:
            return _carry_out(simulation or _restored(config, folder, build), config, folder, watch, stop)
        except WorkerLost as loss:
            if tries == 0:
                raise WorkerLost(
                    f"{loss} That is too often to go on. What there is can be carried on with:  fedtailor run --resume {folder.path}"
                ) from None
            log.warning("%s Carrying on from the last checkpoint with new workers.", loss)
        simulation, tries = None, tries - 1


def _restored(config: Config, folder: RunFolder, build: Build) -> Simulation:
    """A run as it stood at its last whole checkpoint, and its folder cut back to there."""
    simulation = build(config)
    checkpoint = load_latest(folder.checkpoints, config.settings.device)
    if checkpoint is not None:
        folder.cut_back(checkpoint.round)
        simulation.restore(checkpoint.round, checkpoint.server, checkpoint.clients, folder.records())
    else:
        folder.cut_back(0)
    folder.restore_ledger(simulation.ledger)
    return simulation


def _carry_out(simulation: Simulation, config: Config, folder: RunFolder, watch: Watch, stop: Stop) -> Simulation:
    every = config.settings.checkpoint_every
    state = "failed"
    try:
        folder.status("running", simulation.round)
        while not simulation.finished:
            record = simulation.step()
            folder.append(record, simulation)
            in_rounds = record["phase"] == "round"
            due = stop.asked or simulation.round == config.settings.rounds or (every and simulation.round % every == 0)
            if in_rounds and due:
                save(
                    folder.checkpoints,
                    Checkpoint(simulation.round, simulation.server.state, simulation.engine.states()),
                )
            watch(record)
            if stop.asked:
                break
        if simulation.finished and config.settings.save_models:
            simulation.save_models(folder.models)
        state = "finished" if simulation.finished else "interrupted"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        folder.status(state, simulation.round)
        if simulation.metrics and state != "failed":
            folder.write_clients(simulation)
    return simulation


@contextmanager
def polite_stop(say: Callable[[str], None]) -> Iterator[Stop]:
    """Within this context the first Ctrl-C asks for a stop after the round under way."""
    stop = Stop()

    def on_interrupt(number: int, frame: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        say("Stopping after this round; Ctrl-C again stops at once.")

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
