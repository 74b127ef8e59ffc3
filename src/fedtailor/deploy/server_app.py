"""The server of a federation: a simulation whose engine is Flower, and whose clients are elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedtailor.data.federation import Federation
from fedtailor.data.sites import SiteDescription, common_to, federation_of
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.known_sites import KnownSites
from fedtailor.deploy.policy import asked
from fedtailor.deploy.settings import DeploySettings
from fedtailor.deploy.superlink import SuperLink
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.flower.engine import Flower, capped
from fedtailor.engines.flower.transport import Transport
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import load_latest, oldest_round
from fedtailor.experiment.config import Config
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.run import Stop, Watch, resume, start
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.simulation import Simulation
from fedtailor.learning.metrics import selected

log = logging.getLogger("fedtailor")

LOOK = 1.0  # seconds between two looks at who is online


@contextmanager
def at_work(home: DeployFolder, host: str | None = None, port: int | None = None) -> Iterator[ServerApp]:
    """The server of a federation while it can be reached, on the address and port of its terms unless others are given."""
    terms, config = home.terms()
    admitted = home.admitted()
    limit = int(terms.max_reply_mb * 1e6)
    certificates = {name: file for name, (_, file) in admitted.items()}
    host, port = terms.listen if host is None else host, terms.port if port is None else port
    with SuperLink(home.keys, certificates, host, port, limit) as link:
        owners = {node: admitted[name][0] for node, name in link.nodes.items()}
        yield ServerApp(link.grid, owners, terms, config, home.path, link.port)


class ServerApp:
    """The server of one federation and its folder: the run, and what is known of the sites."""

    def __init__(
        self,
        grid: Any,
        owners: Mapping[int, int | None],
        terms: DeploySettings,
        config: Config,
        folder: Path,
        port: int = 0,
    ) -> None:
        """`owners` says which client a node's key belongs to, none for a newcomer."""
        self.terms = terms
        self.config = config
        self.folder = folder
        self.port = port
        said = {"federation": terms.federation, "version": version("fedtailor"), "config": asked(config)}
        limit = int(terms.max_reply_mb * 1e6)
        self.post = Transport(grid, owners, said, timeout=terms.timeout, limit=limit, device=config.settings.device)
        self.members = KnownSites(self.folder / "members")
        self.stop = Stop()

    def run(self, watch: Watch = lambda record: None, stop: Stop | None = None) -> None:
        """Run the federation, from its last checkpoint on if there is one."""
        self.stop = stop or Stop()
        path = self.folder / "run"
        if not (path / "config.toml").exists():
            self.members.forget()
            start(self.config, path, watch, self.stop, build=self._simulation)
        elif Config.load(path / "config.toml").values() != self.config.values():
            raise FedTailorError(f"'{path}' holds a run with other settings. Move it away, or set them back.")
        elif RunFolder(path).state == "finished":
            log.info("The run in %s is finished already.", path)
        else:
            log.info("Carrying on the run in %s.", path)
            resume(path, watch, self.stop, build=self._simulation)
        if RunFolder(path).state == "finished":
            self.post.part()

    def welcome(self, wait: float | None = None) -> None:
        """Give every newcomer that comes online its personal model, by the method's rule; the run itself does not change."""
        simulation, engine = self._finished()
        found = self._newcomers(self.terms.wait if wait is None else wait)
        nodes, sites = dict(enumerate(found)), list(found.values())
        scrutiny = replace(
            engine.scrutiny, sizes={k: (site.train, site.test) for k, site in enumerate(sites)}, known={}
        )
        hellos, silent = self.post.ask_nodes("hello", 0, engine.plain(), {k: {} for k in nodes}, nodes)
        silent |= scrutiny.refused("hello", hellos, {}, trusted=(engine.hellos or {}).values())
        method, server = self.config.method, simulation.server
        payloads = {k: method.welcome(server, hello.up) for k, hello in hellos.items() if k not in silent}
        joined, failed = self.post.ask_nodes("onboard", 0, engine.plain(), payloads, nodes)
        for k, site in enumerate(sites):
            if k in joined:
                log.info("%s %s.%s", site.name, method.new_client, _told(joined[k], simulation.worker.metrics[0].name))
            else:
                log.warning("%s did not join: %s", site.name, {**silent, **failed}[k])
        self.post.part()

    def _newcomers(self, wait: float) -> dict[int, SiteDescription]:
        """The new sites that are online, once there is one."""
        log.info("Waiting for a new site.")
        deadline = time.monotonic() + wait
        while True:
            self.post.meet()
            found = {node: site for node, site in self.post.sites.items() if site.client is None}
            if found:
                return found
            if time.monotonic() > deadline:
                raise FedTailorError(
                    f"No new site came online in {wait:g} s. `fedtailor deploy admit` makes its folder, and at its place "
                    "`fedtailor deploy site` starts it."
                )
            time.sleep(LOOK)

    def _finished(self) -> tuple[Simulation, Flower]:
        """The federation as it stood after its last checkpoint."""
        path = self.folder / "run"
        checkpoint = load_latest(path / "checkpoints", self.config.settings.device)
        if checkpoint is None or not self.members.sites:
            raise FedTailorError(f"'{path}' has no checkpoint to join. Run the federation first.")
        simulation, engine = self._federation(self.config)
        simulation.restore(checkpoint.round, checkpoint.server, {}, RunFolder(path).records())
        return simulation, engine

    def _simulation(self, config: Config) -> Simulation:
        return self._federation(config)[0]

    def _federation(self, config: Config) -> tuple[Simulation, Flower]:
        sites = self.members.sites or self._assembled(config.settings.clients)
        federation = self._with_proxy(federation_of(sites))
        engine = self._engine(federation, sites)
        simulation = Simulation(federation, config.method, config.net, engine=engine, protocol=config.settings)
        simulation.server.sizes = list(capped(dict(enumerate(simulation.server.sizes)), self.terms.max_share).values())
        self.members.record(sites, engine.hellos or {})
        return simulation, engine

    def _engine(self, federation: Federation, sites: Sequence[SiteDescription]) -> Flower:
        sizes = {site.client: (site.train, site.test) for site in sites if site.client is not None}
        names = [f"site {i} ({client.name})" for i, client in enumerate(federation.clients)]
        settings = self.config.settings
        scrutiny = ReplyChecks(
            self.config.method.up,
            sizes,
            few=max(federation.classes, len(sites)),
            metrics=selected(federation.task, settings.metrics, settings.select_by),
            validation=settings.validation,
        )
        common = {"common": common_to(sites).plain()}
        oldest = partial(oldest_round, self.folder / "run" / "checkpoints")
        hellos = self.members.hellos
        return Flower(
            self.post,
            scrutiny,
            names,
            common,
            oldest=oldest,
            hellos=hellos,
            min_replies=self.terms.min_replies,
            max_share=self.terms.max_share,
        )

    def _with_proxy(self, federation: Federation) -> Federation:
        """The server's own samples: from data.proxy, or where all deal the same data set, what the partition leaves to the server."""
        if self.config.data.name == "sites":
            return self.config.proxied(federation)
        return replace(federation, server=self.config.federation().server)

    def _assembled(self, count: int) -> list[SiteDescription]:
        """The sites, once all of them are online."""
        log.info("Waiting for %d sites.", count)
        deadline, seen = time.monotonic() + self.terms.wait, -1
        while True:
            self.post.meet()
            online = {client: self.post.sites[node] for client, node in sorted(self.post.nodes.items())}
            if len(online) != seen:
                seen = len(online)
                log.info("%d of %d sites online%s", seen, count, "".join(f", {i}: {s.name}" for i, s in online.items()))
            if seen >= count:
                return list(online.values())
            if self.stop.asked:  # there is no round to finish yet
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                claims = ", ".join(f"{site.name} is client {site.client}" for site in self.post.sites.values())
                raise FedTailorError(
                    f"Only {seen} of {count} sites were online after {self.terms.wait:g} s (wait). Those that are: {claims or 'none'}."
                )
            time.sleep(LOOK)


def _told(outcome: Outcome, metric: str) -> str:
    score = outcome.score
    if score is None or not score.total:
        return ""
    before, headline = outcome.logged.get(f"{metric}_before"), Headline(metric)
    then = "" if before is None else f" (before it trained: {headline.written(before)})"
    return f" {metric.capitalize()} on its {score.total} test samples: {headline.written(score.value(metric))}{then}"
