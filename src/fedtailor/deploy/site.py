"""A site's end of the federation. It may be killed between any two messages, so everything lasting is on the site's own disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedtailor.data.federation import Federation
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy.policy import NAME, agreed
from fedtailor.deploy.secret_shares import SecretShares
from fedtailor.deploy.secret_steps import Spending
from fedtailor.deploy.site_data import site_data
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.deploy.sum_file import SumFile
from fedtailor.engines.base import Outcome, save_module
from fedtailor.engines.flower.messages import read_call, write_outcome, write_site
from fedtailor.engines.work import Work
from fedtailor.engines.worker import Worker
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import Checkpoint, load_latest, save
from fedtailor.experiment.config import Config
from fedtailor.experiment.run_folder import replace_text
from fedtailor.experiment.saved_models import describe_models
from fedtailor.learning import Payload
from fedtailor.learning.private_steps import STEPS
from fedtailor.privacy.rules import Privacy
from fedtailor.privacy.sample_dp import EPSILON, budget, check_run
from fedtailor.privacy.secure_sum import sums_of
from fedtailor.privacy.secure_sum.contributors import Contributors
from fedtailor.privacy.secure_sum.entries import taken_inbox

SERVED = {Work.HELLO, Work.SCORE, Work.SAVE_MODEL, Work.ONBOARD} | {w for w in Work if w.changes_state or w.sums}


def leaving(outcome: Outcome, work: Work, privacy: Privacy | None) -> Outcome:
    """Everything that leaves a site passes through here last. With privacy, what has no rule of its own beside the payload stays."""
    if privacy is None or not (privacy.rules or privacy.samples):
        return outcome
    if not privacy.rules:  # the payload is protected as a whole; what else comes from samples is not
        return replace(
            outcome, loss=math.nan, score=None, logged={k: v for k, v in outcome.logged.items() if k == EPSILON}
        )
    if work is Work.HELLO and outcome.up and not privacy.allows("hello"):
        raise FedTailorError(
            f"This run's method sends {', '.join(outcome.up)} before the first round, and no rule lets it (privacy.hello=plain would)."
        )
    return replace(
        outcome,
        samples=outcome.samples if privacy.allows("samples") else min(outcome.samples, 1),
        loss=outcome.loss if privacy.allows("loss") else math.nan,
        score=outcome.score if privacy.allows("scores") else None,
        logged=outcome.logged if privacy.allows("logged") else {},
    )


def described(site: SiteDescription, privacy: Privacy | None) -> SiteDescription:
    """Return a site's description without the counts that no rule lets out: one training sample, and no test samples."""
    if privacy is None or not (privacy.rules or privacy.samples):
        return site
    if not privacy.rules:
        return replace(site, test=0)
    train = site.train if privacy.allows("samples") else min(site.train, 1)
    return replace(site, train=train, test=site.test if privacy.allows("scores") else 0)


@dataclass
class SiteNode:
    """One site in one run: the config it agreed to, its data, and the folder for its private state and its personal model."""

    federation: str
    config: Config
    place: SiteFolder
    _data: Federation | None = None  # of this client alone
    _described: Any = None  # as the server sent it: the description by which the data was read

    @classmethod
    def open(cls, place: SiteFolder, federation: Any, values: Any) -> SiteNode:
        """Accept or refuse the run that the server asks for."""
        if not isinstance(federation, str) or not NAME.fullmatch(federation):
            raise FedTailorError(f"The server calls its federation {str(federation)[:40]!r}, which is no name.")
        with contextlib.chdir(place.folder):  # paths in site.toml are relative to it
            config = agreed(values, place.own)
        place.policy.check(config)
        return cls(federation, config, place)

    def answer(self, content: RecordDict) -> RecordDict:
        """Serve one message of the federation's server."""
        torch.set_num_threads(self.config.settings.threads)
        plain, payload = read_call(content, self.config.settings.device)
        if plain["client"] != self.place.client:
            raise FedTailorError(
                f"This site's key is that of client {plain['client']}, but its site.toml says client = {self.place.client}."
            )
        if plain["work"] is Work.DESCRIBE:
            sent = plain.get("description")
            may = self.place.policy.may_describe if sent is None else None
            site = SiteDescription.of(self.data(sent), self.place.client, may)
            return write_site(described(site, self.config.privacy))
        return write_outcome(leaving(self.serve(plain, payload), plain["work"], self.config.privacy))

    def data(self, sent: Any) -> Federation:
        """Return the site's data as the server's description says, None: by itself; it is read when that is sent for the first time."""
        if self._data is None or sent != self._described:
            self._data = None  # free what was read otherwise before this is
            self._data, self._described = site_data(self.place, self.config, sent), sent
        return self._data

    def serve(self, plain: Mapping[str, Any], payload: Payload) -> Outcome:
        """Do this client's part of one call, from the state that it had before that moment of the run."""
        work, round, step = Work(plain["work"]), int(plain["round"]), int(plain["step"])
        self._check(work, payload)
        sums = self._sums()
        if work.sums:
            return self._contribute(sums, work, round, payload)
        if plain.get("description") is None:
            raise FedTailorError("The server did not say how the data is described.")
        worker = self._worker(self.data(plain["description"]), sums)
        if work.trains or work is Work.ONBOARD:
            self._count_round(round)
        id = self.place.client or 0
        moment = self._moment(work, round, step)
        device = self.config.settings.device
        before = load_latest(self.states, device, upto=moment - 1 if work.changes_state else moment)
        if before is not None:
            worker.states[id] = before.clients[id]
        if work.trains:
            self._protect_samples(worker, id, moment, taken_inbox(payload)[0])
        if work is Work.ONBOARD:
            return self._onboard(worker, payload)
        if work is Work.SAVE_MODEL:
            trained = before is not None and before.round >= self._moment(Work.FIT, round, 0)
            if not (trained and self._saves_what_it_scored):
                self._save_model(worker, id, round, payload)
            return Outcome()
        outcome = worker.serve(work, id, round, payload)
        if work is Work.FIT_AND_SCORE and self._saves_what_it_scored:
            # before its state: a kill repeats both
            self._save_model(worker, id, round, worker.unmasked({**payload, **outcome.up}, worker.states[id]))
        if work.changes_state:
            oldest = self._moment(Work.SCORE, int(plain["oldest"]), 0)
            save(self.states, Checkpoint(moment, {}, {id: worker.states[id]}), oldest)
        if sums is not None and work.trains:
            self.sum_file.save(sums, id)
        return outcome

    @property
    def states(self) -> Path:
        return self.place.folder / "state" / self.federation / self.config.method.name

    @property
    def sum_file(self) -> SumFile:
        return SumFile(self.place.folder / "state" / self.federation / "secure-sum.json")

    def _sums(self) -> Contributors | None:
        """Return this site's part in the secure sum under way; its secrets come from the operating system."""
        draws = SecretShares(self.place.folder / "state" / self.federation)
        sums = sums_of(self.config.privacy, self.config.method, self.federation, self.config.settings.rounds, draws)
        if sums is not None and self.place.client is not None:
            self.sum_file.load(sums, self.place.client)
        return sums

    def _contribute(self, sums: Contributors | None, work: Work, round: int, payload: Payload) -> Outcome:
        """Answer a message of a secure sum."""
        client = self.place.client
        if sums is None or client is None:
            raise FedTailorError(f"This site's run has no secure sum to '{work}' for.")
        outcome = Outcome(sums.serve(work, client, round, payload))
        self.sum_file.save(sums, client)
        return outcome

    @property
    def _saves_what_it_scored(self) -> bool:
        """Whether a personal model is that of the last training, scored before the server's answer (see `Simulation.personal`)."""
        method = self.config.method
        return method.scored_after_training(self.config.settings) and not method.closing_steps

    def _check(self, work: Work, payload: Payload) -> None:
        if work not in SERVED:  # a private state is nobody else's business
            raise FedTailorError(f"A site does not do '{work}' for a server.")
        undeclared = sorted(set(taken_inbox(payload)[0]) - set(self.config.method.down))
        if undeclared and not work.sums:
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

    def _worker(self, data: Federation, sums: Contributors | None) -> Worker:
        settings, number = self.config.settings, self.place.client
        if number is not None:
            data = data.with_validation(settings.validation, settings.seed, first=number)
        privacy, method = self.config.privacy, self.config.method
        rules = {} if privacy is None else privacy.of(method)
        return Worker(data, method, self.config.net, None, settings, first=number or 0, rules=rules, sums=sums)

    def _protect_samples(self, worker: Worker, id: int, moment: int, payload: Payload) -> None:
        """Have the worker take private steps in what follows, if the run protects samples; what that spends is recorded here first.

        The budget is for all rounds, since a site cannot know in which of them it will be asked for.
        """
        asked = None if self.config.privacy is None else self.config.privacy.samples
        if asked is None:
            return
        check_run(worker.method, worker.protocol, worker.modules.lend("model")[0])
        spending = Spending.open(self.place.folder / "state" / self.federation)
        state = worker.state(id)
        name = spending.name(moment, payload, {k: t for k, t in state.items() if k != STEPS})
        steps, settings = worker.rehearsed_steps(id, payload), self.config.settings
        own = budget(asked, len(worker.clients[id].train), settings.batch, settings.rounds * steps)
        spent = spending.elsewhere(name)
        spending.spend(name, max(0, min(steps, own.steps - spent)))
        worker.states[id] = {**state, STEPS: torch.tensor(spent)}
        worker.protect({id: own}, spending.draws(name))

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
        describe_models(self.place.folder, self.config, worker.federation.description)

    def _onboard(self, worker: Worker, payload: Payload) -> Outcome:
        before = worker.evaluate(0, 0, payload)
        worker.onboard(0, payload)
        self._save_model(worker, 0, 0, payload)
        name = worker.metrics[0].name
        logged = {} if math.isnan(before.value(name)) else {f"{name}_before": before.value(name)}
        return Outcome(score=worker.evaluate(0, 0, payload), logged=logged)
