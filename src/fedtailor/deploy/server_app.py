"""The server of a federation: a simulation whose engine is Flower, and whose clients are elsewhere."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedtailor.data.client_data import Split
from fedtailor.data.description import Description
from fedtailor.data.federation import Federation
from fedtailor.data.sites import SiteDescription, common_to, federation_of
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.known_sites import KnownSites
from fedtailor.deploy.policy import asked
from fedtailor.deploy.settings import DeploySettings
from fedtailor.deploy.superlink import SuperLink
from fedtailor.engines.allocator import keep_freed_memory
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.flower.engine import Flower, capped
from fedtailor.engines.flower.transport import Transport
from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks
from fedtailor.experiment.checkpoint import load_latest, oldest_round
from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run import Stop, carry_out
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.learning.metrics import selected
from fedtailor.privacy.noise import SecretNoise

log = logging.getLogger("fedtailor")

RETURN = 60.0  # seconds for the sites to come back when a run is resumed; those that do not are missing in its rounds
SECRET = "noise.json"  # in the federation's folder, readable by its user alone
LOOK = 1.0  # seconds between two polls of who is online


@contextmanager
def serving(home: DeployFolder, host: str | None = None, port: int | None = None) -> Iterator[ServerApp]:
    """Run a federation's server within this context, on the address and port of its settings unless others are given."""
    settings, config = home.settings()
    admitted = home.admitted()
    limit = int(settings.max_reply_mb * 1e6)
    certificates = {name: file for name, (_, file) in admitted.items()}
    host, port = settings.listen if host is None else host, settings.port if port is None else port
    keep_freed_memory()
    with SuperLink(home.keys, certificates, host, port, limit) as link:
        owners = {node: admitted[name][0] for node, name in link.nodes.items()}
        yield ServerApp(link.grid, owners, settings, config, home.path, link.port)


class ServerApp:
    """The server of one federation, and its folder: the run, and what is known of the sites."""

    def __init__(
        self,
        grid: Any,
        owners: Mapping[int, int | None],
        settings: DeploySettings,
        config: Config,
        folder: Path,
        port: int = 0,
    ) -> None:
        """`owners` maps a node to the client that its key belongs to, None for a newcomer."""
        self.settings = settings
        self.config = config
        self.folder = folder
        self.port = port
        said = {"federation": settings.federation, "version": version("fedtailor"), "config": asked(config)}
        limit = int(settings.max_reply_mb * 1e6)
        self.transport = Transport(
            grid, owners, said, timeout=settings.timeout, limit=limit, device=config.settings.device
        )
        self.known_sites = KnownSites(self.folder / "members")
        file = self.folder / "description.json"
        self.given = Description.load(file) if file.exists() else None
        self.stop = Stop()

    def run(self, callbacks: Callbacks = (), stop: Stop | None = None, command: str = "") -> None:
        """Run the federation, from its last checkpoint on if there is one."""
        self.stop = stop or Stop()
        folder = RunFolder(self.folder / "run")
        if not folder.begun:
            self.known_sites.forget()
        if folder.state == "finished":  # its models are at the sites: none is missing here
            folder.refuse_other(self.config)
            log.info("The run in %s is finished already.", folder.path)
        else:
            carry_out(self.config, folder.path, callbacks, self.stop, self._simulation, command)
        if folder.state == "finished":
            self.transport.part()

    def welcome(self, wait: float | None = None) -> None:
        """Give every newcomer that comes online its personal model, by the method's rule, without changing the run."""
        simulation, engine = self._finished()
        found = self._newcomers(self.settings.wait if wait is None else wait)
        nodes, sites = dict(enumerate(found)), list(found.values())
        checks = replace(engine.checks, sizes={k: (site.train, site.test) for k, site in enumerate(sites)}, known={})
        hellos, silent = self.transport.ask_nodes(Work.HELLO, 0, engine.plain(), {k: {} for k in nodes}, nodes)
        silent |= checks.refused(Work.HELLO, hellos, {}, trusted=(engine.hellos or {}).values())
        method, server = self.config.method, simulation.server
        payloads = {k: method.welcome(server, hello.up) for k, hello in hellos.items() if k not in silent}
        joined, failed = self.transport.ask_nodes(Work.ONBOARD, 0, engine.plain(), payloads, nodes)
        for k, site in enumerate(sites):
            if k in joined:
                note = _score_note(joined[k], Headline(simulation.worker.metrics[0].name))
                log.info("%s %s.%s", site.name, method.new_client, note)
            else:
                log.warning("%s did not join: %s", site.name, {**silent, **failed}[k])
        self.transport.part()

    def _newcomers(self, wait: float) -> dict[int, SiteDescription]:
        """Wait for a new site; return those that are online."""
        log.info("Waiting for a new site.")
        deadline = time.monotonic() + wait
        while True:
            self.transport.meet()
            found = {node: site for node, site in self.transport.sites.items() if site.client is None}
            if found:
                return found
            if time.monotonic() > deadline:
                raise FedTailorError(
                    f"No new site was ready in {wait:g} s. `fedtailor deploy admit` makes its folder, and at its place "
                    f"`fedtailor deploy site` starts it.{self._refusals()}"
                )
            time.sleep(LOOK)

    def _refusals(self) -> str:
        return "".join(f" From {who}: {why}" for who, why in self.transport.troubles.items())

    def _finished(self) -> tuple[Simulation, Flower]:
        """Restore the federation from its last checkpoint."""
        path = self.folder / "run"
        checkpoint = load_latest(path / "checkpoints", self.config.settings.device)
        if checkpoint is None or not self.known_sites.sites:
            raise FedTailorError(f"'{path}' has no checkpoint to join. Run the federation first.")
        simulation, engine = self._federation(self.config)
        simulation.restore(checkpoint.round, checkpoint.server, {}, RunFolder(path).records())
        return simulation, engine

    def _simulation(self, config: Config) -> Simulation:
        if self.known_sites.sites:  # they find out that the server was gone, and take a moment to come back
            self._say(self._agreed(self.known_sites.sites))
            self._assembled(config.settings.clients, patience=RETURN)
        return self._federation(config)[0]

    def _federation(self, config: Config) -> tuple[Simulation, Flower]:
        sites = self.known_sites.sites
        if not sites:
            self._say(self._given())
            sites = self._assembled(config.settings.clients)
        description = self._agreed(sites)
        self._say(description)
        federation = self._with_proxy(federation_of(sites, description))
        engine = self._engine(federation, sites)
        protects = config.privacy is not None and any(
            r.dp and not r.secure_sum for r in config.privacy.of(config.method).values()
        )
        simulation = Simulation(
            federation,
            config.method,
            config.net,
            engine=engine,
            protocol=config.settings,
            privacy=config.privacy,
            secret=SecretNoise(self.folder / SECRET) if protects else None,
            robust=config.robust,
        )
        simulation.server.sizes = list(
            capped(dict(enumerate(simulation.server.sizes)), self.settings.max_share).values()
        )
        self.known_sites.record(sites, engine.hellos or {})
        return simulation, engine

    def _given(self) -> Description | None:
        """Return the description of a file, or of the data set that all have; None: the sites describe their data themselves."""
        return self.given if self.config.data.name == "sites" else self._shared[0]

    def _agreed(self, sites: Sequence[SiteDescription]) -> Description:
        """Return the description by which all sites read their data; refuse sites whose data does not mean the same."""
        given = self._given()
        try:
            return common_to(sites) if given is None else given
        except FedTailorError as problem:
            self.known_sites.record_refused(sites)
            raise FedTailorError(
                f"The federation cannot start: {problem} Mend that at the site, or give all sites one description: `fedtailor deploy "
                f"describe {self.folder}` merges what they disclosed into a file to check, `fedtailor data describe` makes one from a "
                f"table. With description.json in {self.folder}, start the server again."
            ) from None

    def _say(self, description: Description | None) -> None:
        """Send this description with every message from now on."""
        self.transport.said["description"] = None if description is None else description.plain()

    @cached_property
    def _shared(self) -> tuple[Description, Split]:
        """The description of the data set that all sites have, and the server's part of it."""
        federation = self.config.federation()
        return federation.description, federation.server

    def _engine(self, federation: Federation, sites: Sequence[SiteDescription]) -> Flower:
        sizes = {site.client: (site.train, site.test) for site in sites if site.client is not None}
        names = [f"site {i} ({client.name})" for i, client in enumerate(federation.clients)]
        settings = self.config.settings
        checks = ReplyChecks(
            self.config.method.up,
            sizes,
            few=max(federation.classes, len(sites)),
            metrics=selected(federation.task, settings.metrics, settings.select_by),
            validation=settings.validation,
            summed=() if self.config.privacy is None else self.config.privacy.summed(self.config.method),
        )
        oldest = partial(oldest_round, self.folder / "run" / "checkpoints")
        hellos = self.known_sites.hellos
        return Flower(
            self.transport,
            checks,
            names,
            oldest=oldest,
            hellos=hellos,
            min_replies=self.settings.min_replies,
            max_share=self.settings.max_share,
        )

    def _with_proxy(self, federation: Federation) -> Federation:
        """Add the server's own samples: from data.proxy or, where all have the same data set, what its partition gives the server."""
        if self.config.data.name == "sites":
            return self.config.proxied(federation)
        return replace(federation, server=self._shared[1])

    def _assembled(self, count: int, patience: float = math.inf) -> list[SiteDescription]:
        """Wait until all sites are online, or after `patience` seconds enough for a round, and return their descriptions."""
        log.info("Waiting for %d sites.", count)
        began, seen = time.monotonic(), -1
        while True:
            self.transport.meet()
            online = {client: self.transport.sites[node] for client, node in sorted(self.transport.nodes.items())}
            if len(online) != seen:
                seen = len(online)
                log.info("%d of %d sites online%s", seen, count, "".join(f", {i}: {s.name}" for i, s in online.items()))
            passed = time.monotonic() - began
            if seen >= count or (passed > patience and seen >= self.settings.min_replies):
                return list(online.values())
            if self.stop.asked:  # no round has begun
                raise KeyboardInterrupt
            if passed > self.settings.wait:
                claims = ", ".join(f"{site.name} is client {site.client}" for site in self.transport.sites.values())
                raise FedTailorError(
                    f"Only {seen} of {count} sites were ready after {self.settings.wait:g} s (wait). Those that are: {claims or 'none'}."
                    f"{self._refusals()}"
                )
            time.sleep(LOOK)


def _score_note(outcome: Outcome, metric: Headline) -> str:
    score = outcome.score
    if score is None or not score.total:
        return ""
    before = outcome.logged.get(f"{metric.name}_before")
    then = "" if before is None else f" (before it trained: {metric.shown(before)})"
    return f" {metric.heading} on its {score.total} test samples: {metric.shown(score.value(metric.name))}{then}"
