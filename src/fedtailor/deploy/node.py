"""A site's end of the federation. It may be killed between any two messages, so all that has to last is on the site's own disk."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedtailor.data.federation import Federation
from fedtailor.data.sites import Site
from fedtailor.deploy.terms import Terms, digest, nested, split
from fedtailor.engines.base import Outcome, save_module
from fedtailor.engines.letters import read_call, write_outcome, write_site
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import Checkpoint, load_latest, save
from fedtailor.experiment.config import Config
from fedtailor.experiment.onboarding import as_member
from fedtailor.learning import Payload

CHANGES = ("fit", "fit+score", "sync", "sync+score", "finish")  # works after which a client has another private state
SERVED = (
    "hello",
    "score",
    "save",
    "onboard",
    *CHANGES,
)  # a state is nobody else's business, so no work tells or sets one


def leaving(outcome: Outcome) -> Outcome:
    """Everything that leaves a site passes through here, last of all: the place to clip, to add noise, or to refuse."""
    return outcome


@dataclass(frozen=True)
class Node:
    """One site: its data, its config, and the folder in which it keeps its private state and its personal model."""

    terms: Terms
    config: Config
    client: int | None  # None: a newcomer
    folder: Path
    data: Federation  # of this client alone

    @classmethod
    def open(cls, run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Node:
        """From what the server says of the run, and the site's own site.toml of its data."""
        own = nested(node_config)
        values = nested(run_config)
        client, name = own.pop("client", None), own.pop("name", None)
        folder = Path(own.pop("folder", ".")).resolve()
        has_data = "data" in own
        if has_data:  # neither the server's options of data nor its folders count here
            values["data"] = own.pop("data")
        if own:
            raise FedTailorError(
                f"site.toml has keys that it should not have: {', '.join(own)}. Allowed: client, name, folder, data."
            )
        terms, config = split(values)
        own_data = has_data or client is None
        data = config.alone(str(name or folder.name)) if own_data else part_of(config.federation(), client)
        return cls(terms, config, client, folder, data)

    def answer(self, content: RecordDict) -> RecordDict:
        """Serve one message of the federation's server."""
        torch.set_num_threads(self.config.settings.threads)
        plain, payload = read_call(content, self.config.settings.device)
        if plain["work"] == "describe":
            return write_site(Site.of(self.data, self.client))
        return write_outcome(leaving(self.serve(plain, payload)))

    def serve(self, plain: Mapping[str, Any], payload: Payload) -> Outcome:
        """Do what one call asks of this client, from the state that it had before that moment of the run."""
        work, round, step = str(plain["work"]), int(plain["round"]), int(plain["step"])
        self._check(plain, payload)
        worker = self._worker(Site.read(plain["common"]))
        id = self.client or 0
        moment = self._moment(work, round, step)
        device = self.config.settings.device
        before = load_latest(self.states, device, upto=moment - 1 if work in CHANGES else moment)
        if before is not None:
            worker.states[id] = before.clients[id]
        if work == "onboard":
            return self._onboard(worker, payload)
        if work == "save":
            self._save_model(worker, id, round, payload)
            return Outcome()
        outcome = worker.serve(work, id, round, payload)
        if work in CHANGES:
            oldest = self._moment("score", int(plain["oldest"]), 0)
            save(self.states, Checkpoint(moment, {}, {id: worker.states[id]}), oldest)
        return outcome

    @property
    def states(self) -> Path:
        return self.folder / "state" / self.terms.federation / self.config.method.name

    def _check(self, plain: Mapping[str, Any], payload: Payload) -> None:
        if plain["work"] not in SERVED:
            raise FedTailorError(f"A site does not do '{plain['work']}' for a server.")
        if plain["digest"] != digest(self.config):
            raise FedTailorError(
                f"This site and its server do not mean the same run: their configs differ. The server has fedtailor {plain['version']}; "
                "install the same version here."
            )
        undeclared = sorted(set(payload) - set(self.config.method.down))
        if undeclared:
            raise FedTailorError(f"The server sends {undeclared}, which {self.config.method.name} does not declare.")

    def _worker(self, common: Site) -> Worker:
        settings = self.config.settings
        if settings.compile == "auto":  # compiling takes longer than one message's steps
            settings = replace(settings, compile="off")
        data = as_member(self.data, common.stand_in())
        return Worker(data, self.config.method, self.config.net, None, settings, first=self.client or 0)

    def _moment(self, work: str, round: int, step: int) -> int:
        """When in a run a work is done, as a number that grows: a state is kept under the moment of the work that made it."""
        if work == "finish":
            return 2 * self.config.settings.rounds + 1 + round
        return 2 * round if work.startswith("fit") else 2 * round + 1 + step

    def _save_model(self, worker: Worker, id: int, round: int, payload: Payload) -> None:
        models = self.folder / "models"
        models.mkdir(exist_ok=True)
        name = f"client-{id:05d}" if self.client is not None else "newcomer"
        draft = models / f".draft-{name}"
        save_module(worker.personal(id, round, payload), draft)
        os.replace(draft, models / f"{name}.safetensors")

    def _onboard(self, worker: Worker, payload: Payload) -> Outcome:
        before = worker.evaluate(0, 0, payload)
        worker.onboard(0, payload)
        self._save_model(worker, 0, 0, payload)
        logged = {} if math.isnan(before.accuracy) else {"accuracy_before": before.accuracy}
        return Outcome(score=worker.evaluate(0, 0, payload), logged=logged)


def part_of(federation: Federation, client: int) -> Federation:
    """One client's part of a data set that everyone can deal alike."""
    if not 0 <= client < len(federation.clients):
        raise FedTailorError(
            f"site.toml says client = {client}, but the clients are 0 to {len(federation.clients) - 1}."
        )
    return replace(federation, clients=[federation.clients[client]])
