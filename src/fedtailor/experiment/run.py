"""One experiment from its config to a complete run folder, or from a checkpoint on."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedtailor.engines import WorkerLost
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import Checkpoint, drop_after, load_all, save
from fedtailor.experiment.config import Config
from fedtailor.experiment.draft import drafting
from fedtailor.experiment.legacy_folder import closing_steps, lengths
from fedtailor.experiment.lock import locked
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Record, Simulation
from fedtailor.files import Unwritable

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
    """Run an experiment into a new folder. Whether that can be written is found out before any data is read."""
    with drafting(path) as draft:
        folder = RunFolder(draft.place)
        folder.write_config(config)
        simulation = build(config)
        folder.write_versions(config)
        folder.begin(simulation)
        draft.publish()
        folder = RunFolder(path)
        folder.reopen()
        return _persist(simulation, config, folder, watch, stop or Stop(), build)


def resume(
    path: Path, watch: Watch = lambda record: None, stop: Stop | None = None, build: Build = simulation_of
) -> Simulation | None:
    """Carry on an interrupted run from the last round that all its files hold; the result is that of a run never interrupted.

    Returns None, and writes nothing, if the run is finished already.
    """
    folder = RunFolder.open(path)
    if is_finished(folder):
        return None
    with locked(path):
        if is_finished(folder):  # by whoever had the lock until now
            return None
        config = Config.load(folder.config)
        return _persist(None, config, folder, watch, stop or Stop(), build)


def is_finished(folder: RunFolder) -> bool:
    """Whether a run has nothing left to do; a FedTailorError if it was finished and its files are no longer what they were."""
    folder.check_config()
    if folder.state != "finished":
        return False
    damaged = folder.damage() if folder.marked else _gap(folder)
    if damaged:
        raise FedTailorError(
            f"The run in '{folder.path}' is finished, but its {damaged} is not what it was then: it was edited or damaged. Set it back, "
            f"or delete status.json there and redo what is lost with:  fedtailor run --resume {folder.path}"
        )
    return not folder.missing(Config.load(folder.config).settings.save_models)


def _gap(folder: RunFolder) -> str:
    """The file of a finished run without checksums, as the first versions left it, that lacks something; empty if none does."""
    config = Config.load(folder.config)
    found = lengths(folder.path, config.settings.rounds)
    if isinstance(found, str):
        return found
    return "metrics.jsonl" if closing_steps(folder.metrics) != config.method.closing_steps else ""


def _persist(
    simulation: Simulation | None, config: Config, folder: RunFolder, watch: Watch, stop: Stop, build: Build
) -> Simulation:
    """Carry a run out, from its last checkpoint on if it is not here; so again, a few times, when a worker is lost."""
    tries = TRIES
    carry_on = f"fedtailor run --resume {folder.path}"
    while True:
        try:
            return _carry_out(simulation or _restored(config, folder, build), config, folder, watch, stop)
        except WorkerLost as loss:
            if tries == 0:
                raise WorkerLost(
                    f"{loss} That is too often to go on. What there is can be carried on with:  {carry_on}"
                ) from None
            log.warning("%s Carrying on from the last checkpoint with new workers.", loss)
        except Unwritable as refusal:
            raise Unwritable(f"{refusal} When that is mended, carry on with:  {carry_on}") from None
        simulation, tries = None, tries - 1


def _restored(config: Config, folder: RunFolder, build: Build) -> Simulation:
    """A run as it stood at the last checkpoint whose round all its files hold, and its folder cut back to there."""
    simulation = build(config)
    folder.mend(config, simulation.federation)
    for checkpoint in load_all(folder.checkpoints, config.settings.device):
        damaged = folder.cut_back(checkpoint)
        if not damaged:
            drop_after(folder.checkpoints, checkpoint.round)
            simulation.restore(checkpoint.round, checkpoint.server, checkpoint.clients, folder.records())
            folder.restore_ledger(simulation.ledger)
            return simulation
        log.warning("'%s' does not hold what it held after round %d: going back.", damaged, checkpoint.round)
    if folder.metrics.exists() and folder.metrics.stat().st_size:
        log.warning("'%s' has no checkpoint to carry on from: starting over from its first round.", folder.path)
    drop_after(folder.checkpoints, 0)
    folder.begin(simulation)
    return simulation


def _carry_out(simulation: Simulation, config: Config, folder: RunFolder, watch: Watch, stop: Stop) -> Simulation:
    every = config.settings.checkpoint_every
    try:
        folder.status("running", simulation.round)
        while not simulation.finished:
            record = simulation.step()
            folder.append(record, simulation)
            in_rounds = record["phase"] == "round"
            due = stop.asked or simulation.rounds_done or (every and simulation.round % every == 0)
            if in_rounds and due:
                states = simulation.engine.states()
                save(folder.checkpoints, Checkpoint(simulation.round, simulation.server.state, states, folder.marks()))
            watch(record)
            if stop.asked:
                break
        if simulation.finished and config.settings.save_models:
            simulation.save_models(folder.models)
        if simulation.metrics:
            folder.write_clients(simulation)
    except BaseException as problem:
        with suppress(Unwritable):  # a disk that is full is told already
            folder.status("interrupted" if isinstance(problem, KeyboardInterrupt) else "failed", simulation.round)
        raise
    folder.status("finished" if simulation.finished else "interrupted", simulation.round)
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
