"""What a server asks of its sites and what a site agrees to: the config that travels, and the policy that a site checks it against."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedtailor.data.sites import Aspect
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import FILES, Config, options_of
from fedtailor.learning.protocol import Protocol
from fedtailor.nets.weights import provenance
from fedtailor.privacy.rules import Privacy
from fedtailor.registry import build, option

PLAIN = re.compile(r"[\w.+()=,-]{0,64}")  # text that a server may send: a name, never a path
NAME = re.compile(r"[\w-]{1,64}")  # a federation's name, which becomes a folder's
WEIGHTS = "weights_sha256"  # stands for the file of initial weights, whose path is each machine's own
ASKED = ("method", "net", "privacy", *(name for name in options_of(Protocol) if name != "device"))
AGREEING: tuple[Aspect, ...] = ("columns", "categories", "scaling", "labels")  # by which sites with tables can agree


@dataclass(frozen=True)
class Policy:
    """What a site agrees to, whatever its server asks for: the table [policy] of its site.toml."""

    methods: tuple[str, ...] = option((), "methods that this site takes part in")
    may_leave: tuple[str, ...] = option((), "entries of a method's answers that may leave this site")
    smallest_batch: int = option(1, "a smaller batch is refused: it reveals more about single samples", at_least=1)
    most_rounds: int = option(1, "rounds that this site trains in, repeated ones included", at_least=1)
    may_describe: tuple[Aspect, ...] = option((), "what this site may tell the server of the meaning of its data")
    rules: tuple[str, ...] = option(
        (), "privacy rules that a run must have, such as body=dp; what it refuses is fine too"
    )

    @classmethod
    def for_run(cls, config: Config, described: bool = False) -> Policy:
        """Return the narrowest policy that allows a run, and as many repeated rounds as it has.

        If the federation is `described` by a file, or by a data set that all have, sites need to disclose nothing for that.
        """
        settings = config.settings
        may_describe = () if described or config.data.name != "sites" else AGREEING
        given = {} if config.privacy is None else config.privacy.rules
        rules = tuple(f"{name}={rule}" for name, rule in given.items())
        return cls((config.method.name,), config.method.up, settings.batch, 2 * settings.rounds, may_describe, rules)

    @classmethod
    def read(cls, values: Mapping[str, Any] | None) -> Policy:
        names = [field.name for field in fields(cls) if field.name != "rules"]  # those of early versions have none
        missing = [name for name in names if name not in (values or {})]
        if missing:
            raise FedTailorError(
                f"site.toml has to say in its table [policy] what this site agrees to; {', '.join(missing)} is not there. "
                "`fedtailor deploy init` writes an example."
            )
        return build(cls, values or {}, "policy")

    def check(self, config: Config) -> None:
        """Refuse a run that the policy does not allow; the server is sent the message."""
        method, settings = config.method, config.settings
        if method.name not in self.methods:
            raise FedTailorError(f"This site takes part in {', '.join(self.methods)}, not in {method.name} (policy).")
        more = [name for name in method.up if name not in self.may_leave]
        if more:
            raise FedTailorError(f"{method.name} sends {', '.join(more)}, which may not leave this site (policy).")
        self._check_rules(config.privacy)
        sizes = {"batch": settings.batch} | {
            f"method.{name}": getattr(method, name) for name in options_of(type(method)) if name.endswith("batch")
        }
        for name, size in sizes.items():
            if size < self.smallest_batch:
                raise FedTailorError(
                    f"{name} = {size} is less than {self.smallest_batch}, this site's smallest (policy)."
                )

    def _check_rules(self, privacy: Privacy | None) -> None:
        """Refuse a run without the rules for names that this site asks for."""
        given = {} if privacy is None else {name: str(rule) for name, rule in privacy.rules.items()}
        for wanted in self.rules:
            name, _, rule = wanted.partition("=")
            found = given.get(name, "refuse" if given else "plain")  # with any rule, what has none is refused
            if found not in (rule, "refuse"):
                raise FedTailorError(f"privacy.{name} is {found} in this run, and this site asks for {rule} (policy).")


def asked(config: Config) -> dict[str, Any]:
    """Return the part of a config that server and sites have to agree on; data, files and cores are up to each machine."""
    values = {key: value for key, value in config.values().items() if key in ASKED}
    net = {key: value for key, value in values["net"].items() if key not in FILES}
    weights = getattr(config.net, "weights", "")
    if weights:
        net[WEIGHTS] = provenance(weights)["sha256"]
    return json.loads(json.dumps({**values, "net": net}))


def agreed(values: Any, own: Mapping[str, Any]) -> Config:
    """Return the config of a run at a site: what the server asks for, with the site's own data, files and device.

    Nothing in `values`, which come from the server, can name a file or a folder.
    """
    if not isinstance(values, dict) or set(values) - set(ASKED):
        raise FedTailorError("The server sends no config that a site can use.")
    _check_plain(values)
    tables = {kind: dict(values.get(kind) or {}) for kind in ("method", "net")}
    for kind, table in tables.items():
        name = table.get("name")
        if set(table) & set(FILES) or not (isinstance(name, str) and NAME.fullmatch(name)):
            raise FedTailorError(f"The server's {kind} is no name of something installed here.")
    weights = tables["net"].pop(WEIGHTS, None)
    config = Config.from_values({**values, **own, **tables, "net": {**tables["net"], **own.get("net", {})}})
    mine = asked(config)
    if mine["net"].get(WEIGHTS) != weights:
        raise FedTailorError(
            "The server's run and this site start from different weights. Put the server's file here and name it in site.toml, in "
            "the table [net]: weights = ..."
        )
    if mine != values:
        raise FedTailorError(
            "Server and site read the run's config differently: install the same version of FedTailor."
        )
    return config


def _check_plain(value: Any, depth: int = 0) -> None:
    """Refuse anything but numbers, names, and lists and tables of these."""
    if isinstance(value, str):
        sound = PLAIN.fullmatch(value) is not None
    elif isinstance(value, dict | list):
        sound = depth < 3 and len(value) <= 200
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_plain(item, depth + 1)
    else:
        sound = value is None or isinstance(value, bool | int | float)
    if not sound:
        raise FedTailorError(f"The server's config holds {str(value)[:40]!r}, which is no name or number.")
