"""A run's config: from TOML and key=value overrides to checked objects, and back to TOML that runs again as it is."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

import fedtailor.data.partitions
import fedtailor.data.sources  # noqa: F401  (both register what they hold)
from fedtailor.attacks import Attack, attacks
from fedtailor.data.client_count import USUAL, default_clients
from fedtailor.data.description import Description
from fedtailor.data.federation import Federation
from fedtailor.data.partition import Partition, partitions
from fedtailor.data.partitions.natural import Natural
from fedtailor.data.pool import Pool, Source, data_root, sources
from fedtailor.data.proxy import set_aside, with_proxy
from fedtailor.data.sources.files import file_bytes
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.formats import FORMAT, check_format, without_retired
from fedtailor.experiment.given import PYTHON, GivenData, GivenNet
from fedtailor.learning.metrics import PYTHON as PYTHON_METRIC
from fedtailor.learning.metrics import metric
from fedtailor.learning.protocol import Protocol
from fedtailor.methods import Method, methods
from fedtailor.nets import Architecture, nets
from fedtailor.nets.fitting import FittingNet
from fedtailor.privacy.robust_rules import robust_rules
from fedtailor.privacy.rules import Privacy
from fedtailor.randomness import numpy_stream
from fedtailor.registry import Registry, build, option, options
from fedtailor.robust import RobustMean, robust_means

log = logging.getLogger("fedtailor")

GIVEN: dict[str, type] = {"data": GivenData, "net": GivenNet}  # made in Python: no registry has them

OPTIONAL: dict[str, Registry[Any]] = {"robust": robust_means, "attack": attacks}  # parts that a run need not have

CHOICES: dict[str, Registry[Any]] = {
    "method": methods,
    "data": sources,
    "partition": partitions,
    "net": nets,
    **OPTIONAL,
}

TABLES = (*CHOICES, "privacy")

ASIDE = 0.1  # share of the samples that the server gets where its method needs some

FILES = ("path", "weights", "root")  # options that name a file or folder


@dataclass(frozen=True)
class Settings(Protocol):
    """The plain keys of a config: the protocol, and how the run itself is done."""

    clients: int = option(
        0,
        f"number of clients (0: as many as the data names, else {USUAL}, or fewer where there are too few samples)",
        at_least=0,
        at_most=10**6,
    )
    partition_seed: int | None = option(
        None, "seed of the draw of samples and of their partition (none: the run's seed)", at_least=0, at_most=2**63 - 1
    )
    engine: Literal["auto", "inline", "stacked", "processes", "ray"] = option(
        "auto",
        "who serves the clients: inline (this process), processes (one for each core), ray (actors) or auto (the faster of the first two), "
        "with equal numbers; stacked trains many clients with small nets as one, equal up to rounding",
    )
    workers: int = option(0, "worker processes or Ray actors (0: one for each core)", at_least=0, at_most=1024)
    ray_address: str = option(
        "", "host:port of the Ray cluster to join, or auto (none: Ray is started on this machine)"
    )
    checkpoint_every: int = option(
        5, "save the run's state every so many rounds (0: only at the end of rounds)", at_least=0
    )
    save_models: bool = option(True, "save every client's personal model at the end")

    __repr__ = Protocol.__repr__


@dataclass(frozen=True)
class DataSettings:
    """Options that every data set has."""

    root: str = option("", "folder that holds data sets (default: FEDTAILOR_DATA, else a cache folder)")
    fraction: float = option(1.0, "use only this share of the samples, drawn at random", above=0.0, at_most=1.0)
    proxy: str = option("", "name of another data set whose samples the server gets as proxy data, resized to fit")
    server_share: float | None = option(
        None,
        f"share of the samples set aside for the server as proxy data (none: {ASIDE:g} where the method needs some and has none, else 0)",
        at_least=0.0,
        at_most=0.9,
    )


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    settings: Settings
    method: Method
    data: Source
    data_settings: DataSettings
    partition: Partition
    net: Architecture
    privacy: Privacy | None = None
    robust: RobustMean | None = None
    attack: Attack | None = None

    @classmethod
    def load(cls, path: Path | None = None, words: Iterable[str] = ()) -> Config:
        """The config of a TOML file (or the default one) with key=value overrides applied."""
        return cls.from_values(overridden(path, words))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Config:
        values = without_retired(values, options_of(Settings))
        plain = {k: v for k, v in values.items() if k not in TABLES}
        check_keys(values)
        tables = {kind: _table(values.get(kind, {})) for kind in CHOICES}
        every = options_of(DataSettings)
        common = {k: tables["data"].pop(k) for k in every if k in tables["data"]}
        method = _chosen("method", tables, "fedrep")
        data = _chosen("data", tables, "digits", every)
        partition = _chosen("partition", tables, data.fitting_partition)
        unseen = data.name == "sites"  # no sample is here to choose a net by
        net = _chosen("net", tables, "mlp") if "name" in tables["net"] or unseen else FittingNet(tables["net"])
        privacy = Privacy.read(values.get("privacy"))
        robust, attack = (registry.optional(tables[kind]) for kind, registry in OPTIONAL.items())
        robust_rules(method, {} if privacy is None else privacy.of(method), robust)
        settings, data_settings = build(Settings, plain), build(DataSettings, common, "data")
        return cls(settings, method, data, data_settings, partition, net, privacy, robust, attack)

    @property
    def complete(self) -> bool:
        """Whether it names the net and the number of clients; otherwise these are chosen by the samples."""
        return not isinstance(self.net, FittingNet) and not self._counts_clients

    def completed(self, federation: Federation | None = None) -> Config:
        """Return the config with the net and the number of clients that its federation has; reads the data if none is given."""
        if self.complete:
            return self
        federation = self.federation() if federation is None else federation
        net = self.net.chosen(federation.task) if isinstance(self.net, FittingNet) else self.net
        clients = len(federation.clients) if self._counts_clients else self.settings.clients
        return dataclasses.replace(self, net=net, settings=dataclasses.replace(self.settings, clients=clients))

    @property
    def _counts_clients(self) -> bool:
        """Whether the number of clients is left to the samples."""
        return self.settings.clients == 0 and self.partition.name != "natural"

    def federation(self, description: Description | None = None) -> Federation:
        """Read the data and deal it to the clients, as a description says if one is given."""
        seed, share = self._data_seed, self.server_share
        pool, aside = self._pool(description), None
        if share:
            pool, aside = set_aside(pool, share, numpy_stream(seed, "server_share"))
            if self.data_settings.server_share is None:
                log.warning(
                    "%s needs proxy samples at the server: %d samples (%g %%) are set aside for it; data.server_share changes that.",
                    self.method.name,
                    len(aside),
                    100 * share,
                )
        clients = default_clients(pool, self.partition, seed) if self._counts_clients else self.settings.clients
        federation = Federation.from_pool(pool, self.partition, clients, seed, description=description)
        return self.proxied(federation if aside is None else with_proxy(federation, aside))

    @property
    def server_share(self) -> float:
        """The share of the samples that is set aside for the server before the clients get theirs."""
        asked = self.data_settings.server_share
        if asked is not None:
            return asked
        elsewhere = self.data.name in ("sites", PYTHON)  # no samples here to set aside
        supplied = bool(self.data_settings.proxy) or getattr(self.partition, "server_share", 0.0) > 0
        return ASIDE if self.method.needs_proxy and not supplied and not elsewhere else 0.0

    def alone(self, name: str, description: Description | None = None) -> Federation:
        """Read all data as that of one client, as a description says if one is given; an official test part is its test part."""
        pool = self._pool(description)
        pool = dataclasses.replace(pool, owner=np.zeros(len(pool), np.int64), owners=(name,))
        natural = Natural(test_share=self.partition.test_share)
        return Federation.from_pool(pool, natural, 0, self._data_seed, description=description)

    def proxied(self, federation: Federation) -> Federation:
        """Give the server the samples that data.proxy names, if any."""
        if not self.data_settings.proxy:
            return federation
        root = data_root(self.data_settings.root)
        return with_proxy(federation, sources.build(self.data_settings.proxy, {}).read(root))

    def with_server_share(self, share: float) -> Config:
        return dataclasses.replace(self, data_settings=dataclasses.replace(self.data_settings, server_share=share))

    @property
    def _data_seed(self) -> int:
        return self.settings.seed if self.settings.partition_seed is None else self.settings.partition_seed

    def _pool(self, description: Description | None = None) -> Pool:
        source = self.data if description is None else self.data.as_described(description)
        pool = source.read(data_root(self.data_settings.root))
        if self.data_settings.fraction < 1:
            rng = numpy_stream(self._data_seed, "fraction")
            count = max(1, round(len(pool) * self.data_settings.fraction))
            rows = rng.choice(len(pool), count, replace=False)
            rows.sort()
            pool = pool.subset(rows)
        return pool

    def values(self) -> dict[str, Any]:
        """Return plain values, with every option spelled out."""
        tables: dict[str, Any] = {k: v for k, v in dataclasses.asdict(self.settings).items() if v is not None}
        tables["metrics"] = [m if isinstance(m, str) else PYTHON_METRIC + metric(m).name for m in self.settings.metrics]
        for kind in CHOICES:
            if kind in OPTIONAL and getattr(self, kind) is None:
                continue
            tables[kind] = part_values(getattr(self, kind))
            if kind == "data":
                tables[kind] |= _given(self.data_settings)
        if self.privacy is not None:
            tables["privacy"] = self.privacy.values()
        return tables

    def to_toml(self) -> str:
        return tomli_w.dumps({"format": FORMAT, **self.values()})


def overridden(path: Path | None, words: Iterable[str]) -> dict[str, Any]:
    """Return the values of a TOML file, if there is one, with key=value overrides applied."""
    values = read_toml(path) if path is not None else {}
    for word in words:
        apply_override(values, word)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Read the values of a file of this or an earlier format, including those of retired keys."""
    if not os.path.exists(path):  # unlike Path.exists, it takes any text
        raise FedTailorError(f"The config file '{path}' does not exist.")
    try:
        values = tomllib.loads(file_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise FedTailorError(f"The config file '{path}' is not valid TOML: {error}.") from None
    check_format(values, f"'{path}'")
    values.pop("format", None)
    return values


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a config: `data` is the data set's name, `data.fraction` an option of it."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key not in TABLES:
            values[key] = value
            continue
        if key in CHOICES:
            values[key] = Path(value["name"]).stem if key == "method" else value["name"]
        values |= {f"{key}.{k}": v for k, v in value.items() if key not in CHOICES or k != "name"}
        if key in CHOICES and values[key] != value["name"]:
            values[f"{key}.file"] = value["name"]  # its path tells it from another method of that name
    return values


def apply_override(values: dict[str, Any], word: str) -> None:
    """Apply one key=value override: method=fedrep chooses a part (and drops another's options), method.head_epochs=5 sets an option."""
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise FedTailorError(f"'{word}' is not of the form key=value, such as rounds=5 or method.head_epochs=2.")
    if key == "ray.address":  # dotted as an option of a part is, which Ray is not
        key = "ray_address"
    head, dot, option_name = key.partition(".")
    if dot and head not in TABLES:
        hint = nearest(head, TABLES) or nearest(key, options_of(Settings))
        raise FedTailorError(f"Unknown key '{key}'.{hint} Dotted keys start with: {', '.join(TABLES)}.")
    if head not in TABLES or key == "privacy":
        values[key] = _parse(text)
        return
    table = _table(values.get(head, {})) if head in CHOICES else dict(values.get(head, {}))
    if dot:
        table[option_name] = _parse(text)
    elif table.get("name") != text:
        common = options_of(DataSettings) if head == "data" else []
        table = {"name": text, **{k: v for k, v in table.items() if k in common or "name" not in table}}
    values[head] = table


def method_overrides(text: str) -> list[str]:
    """Split a method with its options, fedrep:head_epochs=5,keep=head,norm, into key=value overrides."""
    name, _, given = text.partition(":")
    words = re.split(r",(?=\w+=)", given)  # other commas are those of a list
    return [f"method={name}", *(f"method.{word}" for word in words if word)]


def _table(value: Any) -> dict[str, Any]:
    """Return a part's table; `method = "fedrep"` is short for one with only a name."""
    return dict(value) if isinstance(value, Mapping) else {"name": value}


def _chosen(kind: str, tables: dict[str, dict[str, Any]], default: str, also: Iterable[str] = ()) -> Any:
    fields = dict(tables[kind])
    name = fields.pop("name", default)
    if name == PYTHON and kind in GIVEN:
        return build(GIVEN[kind], fields, kind)
    return CHOICES[kind].build(name, fields, also)


def check_keys(values: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Refuse a key that is neither a config's nor one of `more`."""
    allowed = [*TABLES, *options_of(Settings), *more]
    for key in values:
        if key not in allowed:
            raise FedTailorError(f"Unknown key '{key}'.{nearest(key, allowed)} Allowed: {', '.join(allowed)}.")


def options_of(cls: type) -> list[str]:
    return [option.name for option in options(cls)]


def part_values(part: Any) -> dict[str, Any]:
    """Return a method, data set, partition or net as a table of a config."""
    if isinstance(part, FittingNet):
        return dict(part.options)
    return {"name": getattr(part, "file", part.name), **_given(part)}


def _given(part: Any) -> dict[str, Any]:
    """Return the options that have a value; file names are absolute, so that a config runs from any folder."""
    given = {k: v for k, v in dataclasses.asdict(part).items() if v is not None}
    return {k: str(Path(v).resolve()) if k in FILES and v and os.path.exists(v) else v for k, v in given.items()}


def _parse(text: str) -> Any:
    """Parse a TOML value; return the text itself if it is not one."""
    try:
        read = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    return read["v"] if len(read) == 1 else text  # a line break in the text may have begun another key
