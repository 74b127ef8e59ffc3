"""A site's end of the federation. It may be killed between any two messages, so everything lasting is on the site's own disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedtailor.data.federation import Federation
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy.policy import NAME, Policy, agreed
from fedtailor.engines.base import Outcome, save_module
from fedtailor.engines.flower.messages import read_call, write_outcome, write_site
from fedtailor.engines.work import Work
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import Checkpoint, load_latest, save
from fedtailor.experiment.config import Config, read_toml
from fedtailor.experiment.onboarding import as_member
from fedtailor.experiment.run_folder import replace_text
from fedtailor.learning import Payload

OWN = (
    "data",
    "partition",
    "net",
    "device",
    "clients",
    "partition_seed",
)  # the keys of a run's config that a site sets itself
KEYS = ("client", "name", "server", "shared", "policy", *OWN)
SERVED = {Work.HELLO, Work.SCORE, Work.SAVE_MODEL, Work.ONBOARD} | {work for work in Work if work.changes_state}


def leaving(outcome: Outcome) -> Outcome:
    """Everything that leaves a site passes through here last: the place to clip, to add noise, or to refuse."""
    return outcome


@dataclass(frozen=True)
class SiteFolder:
    """A site's own folder, and the values of its site.toml."""

    folder: Path
    client: int | None  # None for a newcomer
    name: str
    server: str
    shared: bool  # whether all sites have the same data set, of which this site uses its part
    policy: Policy
    own: dict[str, Any]  # its own part of a run's config: data, files and device

    @classmethod
    def open(cls, folder: Path) -> SiteFolder:
        folder = folder.resolve()
        if not (folder / "site.toml").is_file():
            raise FedTailorError(f"'{folder}' is not the folder of a site: it has no site.toml.")
        said = read_toml(folder / "site.toml")
        strange = sorted(set(said) - set(KEYS))
        if strange:
            raise FedTailorError(f"site.toml has unknown keys: {', '.join(strange)}. Allowed: {', '.join(KEYS)}.")
        client = said.get("client")
        if not (client is None or (isinstance(client, int) and client >= 0)):
            raise FedTailorError(f"site.toml says client = {client!r}, which is not a client's number.")
        server = str(said.get("server", ""))
        if not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", server):
            raise FedTailorError(
                f"site.toml says server = {server!r}; expected host:port, such as fed.example.org:9092."
            )
        if "data" not in said:
            raise FedTailorError(
                "site.toml names no data: add a table [data] with name, path … as `fedtailor datasets table` lists them."
            )
        policy = Policy.read(said.get("policy"))
        own = {key: said[key] for key in OWN if key in said}
        name = str(said.get("name") or folder.name)
        return cls(folder, client, name, server, bool(said.get("shared", False)), policy, own)


@dataclass(frozen=True)
class SiteNode:
    """One site in one run: its data, the config it agreed to, and the folder for its private state and its personal model."""

    federation: str
    config: Config
    place: SiteFolder
    data: Federation  # of this client alone

    @classmethod
    def open(cls, place: SiteFolder, federation: Any, values: Any) -> SiteNode:
        """Accept or refuse the run that the server asks for, and read the site's data."""
        if not isinstance(federation, str) or not NAME.fullmatch(federation):
            raise FedTailorError(f"The server calls its federation {str(federation)[:40]!r}, which is no name.")
        with contextlib.chdir(place.folder):  # paths in site.toml are relative to it
            config = agreed(values, place.own)
            place.policy.check(config)
            if place.shared and place.client is not None:
                return cls(federation, config, place, part_of(config.federation(), place.client))
            return cls(federation, config, place, config.alone(place.name))

    def answer(self, content: RecordDict) -> RecordDict:
        """Serve one message of the federation's server."""
        torch.set_num_threads(self.config.settings.threads)
        plain, payload = read_call(content, self.config.settings.device)
        if plain["client"] != self.place.client:
            raise FedTailorError(
                f"This site's key is that of client {plain['client']}, but its site.toml says client = {self.place.client}."
            )
        if plain["work"] is Work.DESCRIBE:
            return write_site(SiteDescription.of(self.data, self.place.client))
        return write_outcome(leaving(self.serve(plain, payload)))

    def serve(self, plain: Mapping[str, Any], payload: Payload) -> Outcome:
        """Do this client's part of one call, from the state that it had before that moment of the run."""
        work, round, step = Work(plain["work"]), int(plain["round"]), int(plain["step"])
        self._check(work, payload)
        worker = self._worker(SiteDescription.read(plain["common"]))
        if work.trains or work is Work.ONBOARD:
            self._count_round(round)
        id = self.place.client or 0
        moment = self._moment(work, round, step)
        device = self.config.settings.device
        before = load_latest(self.states, device, upto=moment - 1 if work.changes_state else moment)
        if before is not None:
            worker.states[id] = before.clients[id]
        if work is Work.ONBOARD:
            return self._onboard(worker, payload)
        if work is Work.SAVE_MODEL:
            self._save_model(worker, id, round, payload)
            return Outcome()
        outcome = worker.serve(work, id, round, payload)
        if work.changes_state:
            oldest = self._moment(Work.SCORE, int(plain["oldest"]), 0)
            save(self.states, Checkpoint(moment, {}, {id: worker.states[id]}), oldest)
        return outcome

    @property
    def states(self) -> Path:
        return self.place.folder / "state" / self.federation / self.config.method.name

    def _check(self, work: Work, payload: Payload) -> None:
        if work not in SERVED:  # a private state is nobody else's business
            raise FedTailorError(f"A site does not do '{work}' for a server.")
        undeclared = sorted(set(payload) - set(self.config.method.down))
        if undeclared:
            raise FedTailorError(f"The server sends {undeclared}, which {self.config.method.name} does not declare.")

    def _count_round(self, round: int) -> None:
        """Count the rounds that this site trains in, over all runs: a server could repeat one round again and again."""
        most, file = self.place.policy.most_rounds, self.place.folder / "state" / "rounds.json"
        trained = int(json.loads(file.read_text())) if file.exists() else 0
        if trained >= most or round > most:
            raise FedTailorError(
                f"This site has trained in {trained} rounds and agreed to {most} (most_rounds of its policy). The site's operator can "
                "raise that in site.toml."
            )
        file.parent.mkdir(exist_ok=True)
        replace_text(file, json.dumps(trained + 1))

    def _worker(self, common: SiteDescription) -> Worker:
        settings, number = self.config.settings, self.place.client
        data = self.data
        if data.description.columns != common.data.columns:
            with contextlib.chdir(self.place.folder):
                data = self.config.alone(self.place.name, common.data)
        data = as_member(data, common.stand_in())
        if number is not None:
            data = data.with_validation(settings.validation, settings.seed, first=number)
        return Worker(data, self.config.method, self.config.net, None, settings, first=number or 0)

    def _moment(self, work: Work, round: int, step: int) -> int:
        """Return the moment of a work in its run, a growing number; a state is stored under the moment of the work that made it."""
        if step:  # closing steps come after the last round, which early stopping may have made any
            return 2 * self.config.settings.rounds + 1 + step
        return 2 * round if work.trains else 2 * round + 1

    def _save_model(self, worker: Worker, id: int, round: int, payload: Payload) -> None:
        models = self.place.folder / "models"
        models.mkdir(exist_ok=True)
        name = f"client-{id:05d}" if self.place.client is not None else "newcomer"
        draft = models / f".draft-{name}"
        save_module(worker.personal(id, round, payload), draft)
        os.replace(draft, models / f"{name}.safetensors")

    def _onboard(self, worker: Worker, payload: Payload) -> Outcome:
        before = worker.evaluate(0, 0, payload)
        worker.onboard(0, payload)
        self._save_model(worker, 0, 0, payload)
        name = worker.metrics[0].name
        logged = {} if math.isnan(before.value(name)) else {f"{name}_before": before.value(name)}
        return Outcome(score=worker.evaluate(0, 0, payload), logged=logged)


def part_of(federation: Federation, client: int) -> Federation:
    """Return one client's part of a data set that all sites have."""
    if not 0 <= client < len(federation.clients):
        raise FedTailorError(
            f"site.toml says client = {client}, but the clients are 0 to {len(federation.clients) - 1}."
        )
    return replace(federation, clients=[federation.clients[client]])
