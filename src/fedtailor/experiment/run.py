"""One experiment, from its config or a checkpoint to a complete run folder."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import nn

from fedtailor.data.federation import Federation
from fedtailor.engines import WorkerLost, stacking_pays
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks, calling
from fedtailor.experiment.checkpoint import Checkpoint, drop_after, load_all, save
from fedtailor.experiment.config import Config
from fedtailor.experiment.draft import drafting
from fedtailor.experiment.given import GivenNet
from fedtailor.experiment.legacy_folder import closing_steps, lengths
from fedtailor.experiment.lock import locked
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.files import Unwritable

log = logging.getLogger("fedtailor")

TRIES = 3  # how often a run restarts by itself after losing a worker

Build = Callable[[Config], Simulation]


@dataclass
class Stop:
    """Set by the first Ctrl-C: the current round is finished and saved, then the run ends. A second Ctrl-C ends it at once."""

    asked: bool = False


def simulation_of(config: Config, federation: Federation | None = None, net: nn.Module | None = None) -> Simulation:
    """The simulation that a config describes, all clients on this machine; data and net made in Python are given with it."""
    federation = config.federation() if federation is None else federation
    config = config.completed(federation)
    settings = config.settings
    simulation = Simulation(
        federation,
        config.method,
        config.net if net is None else net,
        head=config.net.head or None if isinstance(config.net, GivenNet) else None,
        engine=settings.engine,
        workers=settings.workers,
        ray_address=settings.ray_address,
        protocol=settings,
        privacy=config.privacy,
        robust=config.robust,
        attack=config.attack,
    )
    if settings.engine == "auto" and stacking_pays(simulation.worker):
        _advise_stacking()
    return simulation


@cache
def _advise_stacking() -> None:
    """Say once that there is a faster engine, which a run has to ask for because its numbers differ by rounding."""
    log.warning(
        "The net is small: engine=stacked trains many such clients as one, several times as fast (numbers equal up to rounding)."
    )


def carry_out(
    config: Config,
    path: Path,
    callbacks: Callbacks = (),
    stop: Stop | None = None,
    build: Build = simulation_of,
    command: str = "",
) -> Simulation | None:
    """Start the run in a new folder, resume it in one that holds it already, or refuse one that holds another run.

    Returns None, and writes nothing, if the run is finished already. `command` is what was typed, for whoever reads the folder.
    """
    folder = RunFolder(path)
    if not folder.begun:
        return start(config, path, callbacks, stop, build, command)
    config = config.completed()
    folder.refuse_other(config)
    return resume(path, callbacks, stop, build, command, config)


def start(
    config: Config,
    path: Path,
    callbacks: Callbacks = (),
    stop: Stop | None = None,
    build: Build = simulation_of,
    command: str = "",
) -> Simulation:
    """Run an experiment into a new folder. Whether that can be written is found out before any data is read."""
    with drafting(path) as draft:
        folder = RunFolder(draft.place, command)
        folder.write_config(config)
        simulation = build(config)
        config = config.completed(simulation.federation)
        folder.write_config(config)
        folder.write_versions(config)
        if isinstance(config.net, GivenNet):
            folder.write_net(simulation)
        folder.begin(simulation)
        draft.publish()
        folder = RunFolder(path, command)
        folder.reopen()
        return _persist(simulation, config, folder, callbacks, stop or Stop(), build)


def resume(
    path: Path,
    callbacks: Callbacks = (),
    stop: Stop | None = None,
    build: Build = simulation_of,
    command: str = "",
    config: Config | None = None,
) -> Simulation | None:
    """Resume an interrupted run from the last round that all its files hold; the result is that of a run never interrupted.

    `config` replaces the folder's own where it differs only in what changes no number. Returns None, and writes nothing, if the run is
    finished already.
    """
    folder = RunFolder.open(path, command)
    if is_finished(folder):
        return None
    with locked(path):
        if is_finished(folder):  # by whoever held the lock until now
            return None
        config = config or Config.load(folder.config)
        return _persist(None, config, folder, callbacks, stop or Stop(), build)


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run has nothing left to do; raise FedTailorError if its files have changed since it was finished."""
    folder.check_config()
    if folder.state != "finished":
        return False
    damaged = folder.damage() if folder.marked else _gap(folder)
    if damaged:
        raise FedTailorError(
            f"The run in '{folder.path}' is finished, but its {damaged} is not what it was then: it was edited or damaged. Set it back, "
            f"or delete status.json there and redo what is lost with:  {folder.how_to_resume}"
        )
    return not folder.missing(Config.load(folder.config).settings.save_models)


def _gap(folder: RunFolder) -> str:
    """Return the file that is incomplete in a finished run without checksums, as the first versions left them; empty if none is."""
    config = Config.load(folder.config)
    found = lengths(folder.path, config.settings.rounds)
    if isinstance(found, str):
        return found
    return "metrics.jsonl" if closing_steps(folder.metrics) != config.method.closing_steps else ""


def _persist(
    simulation: Simulation | None, config: Config, folder: RunFolder, callbacks: Callbacks, stop: Stop, build: Build
) -> Simulation:
    """Carry out a run, from its last checkpoint if no simulation is given; restart a few times when a worker is lost."""
    tries = TRIES
    while True:
        try:
            return _run_rounds(simulation or _restored(config, folder, build), config, folder, callbacks, stop)
        except WorkerLost as loss:
            if tries == 0:
                raise WorkerLost(
                    f"{loss} That is too often to go on. What there is can be carried on with:  {folder.how_to_resume}"
                ) from None
            log.warning("%s Carrying on from the last checkpoint with new workers.", loss)
        except Unwritable as refusal:
            raise Unwritable(f"{refusal} When that is mended, carry on with:  {folder.how_to_resume}") from None
        simulation, tries = None, tries - 1


def _restored(config: Config, folder: RunFolder, build: Build) -> Simulation:
    """Restore a run from the last checkpoint that all its files match, and cut the files back to it."""
    simulation = build(config)
    folder.mend(config, simulation.federation)
    for checkpoint in load_all(folder.checkpoints, config.settings.device):
        damaged = folder.cut_back(checkpoint)
        if not damaged:
            drop_after(folder.checkpoints, checkpoint.round)
            simulation.restore(checkpoint.round, checkpoint.server, checkpoint.clients, folder.records())
            if simulation.finished and simulation.scored_with_replies and config.settings.save_models:
                simulation = build(config)  # its models are made of the replies of the last round: repeat that
                continue
            folder.restore_ledger(simulation.ledger)
            return simulation
        log.warning("'%s' does not hold what it held after round %d: going back.", damaged, checkpoint.round)
    if folder.metrics.exists() and folder.metrics.stat().st_size:
        log.warning("'%s' has no checkpoint to carry on from: starting over from its first round.", folder.path)
    drop_after(folder.checkpoints, 0)
    folder.begin(simulation)
    return simulation


def _run_rounds(
    simulation: Simulation, config: Config, folder: RunFolder, callbacks: Callbacks, stop: Stop
) -> Simulation:
    """Run what is left of a run and keep its folder up to date."""
    every = config.settings.checkpoint_every
    simulation.path = folder.path
    try:
        folder.status("running", simulation.round)
        with calling(callbacks, simulation) as after_round:
            while not simulation.finished:
                record = simulation.step()
                folder.append(record, simulation)
                after_round(record)  # first: it may end the rounds, and the last one has a checkpoint
                last = simulation.rounds_done
                if record["phase"] == "round" and (stop.asked or last or (every and simulation.round % every == 0)):
                    states = simulation.engine.states() if simulation.engine.holds_states else {}
                    save(
                        folder.checkpoints,
                        Checkpoint(simulation.round, simulation.server.state, states, folder.marks()),
                    )
                if stop.asked:
                    break
        if simulation.finished and config.settings.save_models:
            simulation.save_models(folder.models)
        if simulation.metrics:
            folder.write_clients(simulation)
    except BaseException as problem:
        with suppress(Unwritable):  # a full disk is reported already
            folder.status("interrupted" if isinstance(problem, KeyboardInterrupt) else "failed", simulation.round)
        raise
    folder.status("finished" if simulation.finished else "interrupted", simulation.round)
    return simulation


@contextmanager
def polite_stop(say: Callable[[str], None]) -> Iterator[Stop]:
    """Within this context, let the first Ctrl-C stop the run after the current round."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's
        return

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
