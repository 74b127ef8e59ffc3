"""The server's end of the federation: a simulation whose engine is Flower, and whose clients are elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtailor.data.federation import Federation
from fedtailor.data.sites import Site, common_to, federation_of
from fedtailor.deploy.members import Members
from fedtailor.deploy.terms import Terms, digest, from_flat
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower import Flower, capped
from fedtailor.engines.post import Post
from fedtailor.engines.scrutiny import Scrutiny
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import load_latest, oldest_round
from fedtailor.experiment.config import Config
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.run import resume, start
from fedtailor.experiment.simulation import Record, Simulation

log = logging.getLogger("fedtailor")

LOOK = 1.0  # seconds between two looks at who is online

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation, from its last checkpoint on if there is one, or welcome newcomers to it."""
    log.handlers, log.propagate = [logging.StreamHandler(sys.stdout)], False
    log.setLevel(logging.INFO)
    try:
        terms, config = from_flat(context.run_config)
        server = Headquarters(grid, terms, config)
        if terms.work == "welcome":
            server.welcome()
        else:
            server.run()
    except FedTailorError:
        sys.tracebacklimit = 0  # Flower logs the exception, of which only the words are of use
        raise


class Headquarters:
    """The server of one federation and its folder: the run, and what is known of the sites."""

    def __init__(self, grid: Grid, terms: Terms, config: Config) -> None:
        self.terms = terms
        self.config = config
        self.folder = Path(terms.folder)
        limit = int(terms.max_reply_mb * 1e6)
        self.post = Post(grid, timeout=terms.timeout, limit=limit, device=config.settings.device)
        self.members = Members(self.folder / "members")

    def run(self) -> None:
        path = self.folder / "run"
        if not (path / "config.toml").exists():
            self.members.forget()
            start(self.config, path, self._say, build=self._simulation)
        elif Config.load(path / "config.toml").values() != self.config.values():
            raise FedTailorError(f"'{path}' holds a run with other settings. Move it away, or set them back.")
        elif RunFolder(path).state == "finished":
            log.info("The run in %s is finished already.", path)
        else:
            log.info("Carrying on the run in %s.", path)
            resume(path, self._say, build=self._simulation)

    def welcome(self) -> None:
        """Give every newcomer that is online its personal model, by the method's rule; the run itself does not change."""
        simulation, engine = self._finished()
        self.post.meet()
        found = {node: site for node, site in self.post.sites.items() if site.client is None}
        nodes, sites = dict(enumerate(found)), list(found.values())
        if not nodes:
            raise FedTailorError("No newcomer is online: a site whose site.toml has no client number.")
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
                log.info("%s %s.%s", site.name, method.new_client, _told(joined[k]))
            else:
                log.warning("%s did not join: %s", site.name, {**silent, **failed}[k])

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

    def _engine(self, federation: Federation, sites: Sequence[Site]) -> Flower:
        sizes = {site.client: (site.train, site.test) for site in sites if site.client is not None}
        names = [f"site {i} ({client.name})" for i, client in enumerate(federation.clients)]
        scrutiny = Scrutiny(self.config.method.up, sizes, few=max(federation.classes, len(sites)))
        common = {"digest": digest(self.config), "version": version("fedtailor"), "common": common_to(sites).plain()}
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

    def _assembled(self, count: int) -> list[Site]:
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
            if time.monotonic() > deadline:
                claims = ", ".join(f"{site.name} is client {site.client}" for site in self.post.sites.values())
                raise FedTailorError(
                    f"Only {seen} of {count} sites were online after {self.terms.wait:g} s (wait). Those that are: {claims or 'none'}."
                )
            time.sleep(LOOK)

    def _say(self, record: Record) -> None:
        what = f"round {record['round']}" + (f", closing step {record['step']}" if "step" in record else "")
        accuracy = record["accuracy_mean"]
        quality = f"accuracy {100 * accuracy:.2f} %" if accuracy is not None and accuracy == accuracy else "not scored"
        log.info("%s of %d: %s, %s replied", what, self.config.settings.rounds, quality, record.get("replied", "all"))


def _told(outcome: Outcome) -> str:
    score = outcome.score
    if score is None or not score.total:
        return ""
    before = outcome.logged.get("accuracy_before")
    then = "" if before is None else f" (before it trained: {100 * before:.2f} %)"
    return f" Accuracy on its {score.total} test samples: {100 * score.accuracy:.2f} %{then}"
