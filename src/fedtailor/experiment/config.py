"""A run's config: from TOML and key=value words to checked objects, and back to TOML that runs again as it is."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import fedtailor.data.partitions
import fedtailor.data.sources  # noqa: F401  (both register what they hold)
from fedtailor.data.federation import Federation
from fedtailor.data.partition import Partition, partitions
from fedtailor.data.partitions.natural import Natural
from fedtailor.data.pool import Pool, Source, data_root, sources
from fedtailor.data.proxy import with_proxy
from fedtailor.data.sources.files import file_bytes
from fedtailor.errors import FedTailorError, nearest
from fedtailor.learning.protocol import Protocol
from fedtailor.methods import Method, methods
from fedtailor.nets import Architecture, nets
from fedtailor.randomness import numpy_stream
from fedtailor.registry import Registry, build, option, options

CHOICES: dict[str, Registry[Any]] = {"method": methods, "data": sources, "partition": partitions, "net": nets}

FILES = ("path", "weights", "root")  # options that name a file or folder


@dataclass(frozen=True)
class Settings(Protocol):
    """The plain keys of a config: the protocol, and how the run itself is done."""

    clients: int = option(0, "number of clients (0: as many as the data names, else 20)", at_least=0, at_most=10**6)
    partition_seed: int | None = option(
        None, "seed of the draw of samples and of their partition (none: the run's seed)", at_least=0, at_most=2**63 - 1
    )
    engine: Literal["auto", "inline", "processes", "ray"] = option(
        "auto",
        "who serves the clients: this process, one process for each core, Ray actors, or the faster of the first two (equal numbers)",
    )
    workers: int = option(0, "worker processes or Ray actors (0: one for each core)", at_least=0, at_most=1024)
    ray_address: str = option(
        "", "host:port of the Ray cluster to join, or auto (none: Ray is started on this machine)"
    )
    checkpoint_every: int = option(
        5, "save the run's state every so many rounds (0: only at the end of rounds)", at_least=0
    )
    save_models: bool = option(True, "save every client's personal model at the end")


@dataclass(frozen=True)
class DataSettings:
    """Options that every data set has."""

    root: str = option("", "folder that holds data sets (default: FEDTAILOR_DATA, else a cache folder)")
    fraction: float = option(1.0, "use only this share of the samples, drawn at random", above=0.0, at_most=1.0)
    proxy: str = option("", "name of another data set whose samples the server gets as proxy data, resized to fit")


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    settings: Settings
    method: Method
    data: Source
    data_settings: DataSettings
    partition: Partition
    net: Architecture

    @classmethod
    def load(cls, path: Path | None = None, words: Iterable[str] = ()) -> Config:
        """The config of a TOML file (or the default one) with key=value words laid over it."""
        values = read_toml(path) if path is not None else {}
        for word in words:
            apply_override(values, word)
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Config:
        plain = {k: v for k, v in values.items() if k not in CHOICES}
        check_keys(values)
        tables = {kind: _table(values.get(kind, {})) for kind in CHOICES}
        common = {k: tables["data"].pop(k) for k in options_of(DataSettings) if k in tables["data"]}
        method = _chosen("method", tables, "fedrep")
        data = _chosen("data", tables, "digits")
        partition = _chosen("partition", tables, data.fitting_partition)
        net = _chosen("net", tables, data.fitting_net)
        settings = build(Settings, plain)
        if settings.clients == 0 and partition.name != "natural":
            settings = dataclasses.replace(settings, clients=20)
        return cls(settings, method, data, build(DataSettings, common, "data"), partition, net)

    def federation(self) -> Federation:
        """Read the data and deal it to the clients."""
        seed = self._data_seed
        return self.proxied(Federation.from_pool(self._pool(), self.partition, self.settings.clients, seed))

    def alone(self, name: str) -> Federation:
        """Read the data as that of one client, who has all of it; an official test part is its test part."""
        pool = self._pool()
        pool = dataclasses.replace(pool, owner=np.zeros(len(pool), np.int64), owners=(name,))
        return Federation.from_pool(pool, Natural(test_share=self.partition.test_share), 0, self._data_seed)

    def proxied(self, federation: Federation) -> Federation:
        """With the samples that data.proxy names at the server, if it names any."""
        if not self.data_settings.proxy:
            return federation
        root = data_root(self.data_settings.root)
        return with_proxy(federation, sources.build(self.data_settings.proxy, {}).read(root))

    @property
    def _data_seed(self) -> int:
        return self.settings.seed if self.settings.partition_seed is None else self.settings.partition_seed

    def _pool(self) -> Pool:
        pool = self.data.read(data_root(self.data_settings.root))
        if self.data_settings.fraction < 1:
            rng = numpy_stream(self._data_seed, "fraction")
            count = max(1, round(len(pool) * self.data_settings.fraction))
            rows = rng.choice(len(pool), count, replace=False)
            rows.sort()
            pool = pool.subset(rows)
        return pool

    def values(self) -> dict[str, Any]:
        """As plain values, every option spelled out."""
        tables: dict[str, Any] = {k: v for k, v in dataclasses.asdict(self.settings).items() if v is not None}
        tables["metrics"] = [getattr(metric, "__name__", metric) for metric in self.settings.metrics]
        for kind in CHOICES:
            part = getattr(self, kind)
            tables[kind] = {"name": getattr(part, "file", part.name), **_given(part)}
            if kind == "data":
                tables[kind] |= _given(self.data_settings)
        return tables

    def to_toml(self) -> str:
        return write_toml(self.values())


def read_toml(path: Path) -> dict[str, Any]:
    if not os.path.exists(path):  # unlike Path.exists, it takes any text
        raise FedTailorError(f"The config file '{path}' does not exist.")
    try:
        return tomllib.loads(file_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise FedTailorError(f"The config file '{path}' is not valid TOML: {error}.") from None


def write_toml(values: Mapping[str, Any]) -> str:
    """Plain values first, then one table for each mapping."""
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for key, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{key}]", *(f"{k} = {toml_value(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def apply_override(values: dict[str, Any], word: str) -> None:
    """Apply one key=value word: method=fedrep names a thing (and drops the options of another), method.head_epochs=5 sets an option."""
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise FedTailorError(f"'{word}' is not of the form key=value, such as rounds=5 or method.head_epochs=2.")
    if key == "ray.address":  # dotted as an option of a part is, which Ray is not
        key = "ray_address"
    head, dot, option_name = key.partition(".")
    if dot and head not in CHOICES:
        hint = nearest(head, CHOICES) or nearest(key, options_of(Settings))
        raise FedTailorError(f"Unknown key '{key}'.{hint} Dotted keys start with: {', '.join(CHOICES)}.")
    if head not in CHOICES:
        values[key] = _parse(text)
        return
    table = _table(values.get(head, {}))
    if dot:
        table[option_name] = _parse(text)
    elif table.get("name") != text:
        common = options_of(DataSettings) if head == "data" else []
        table = {"name": text, **{k: v for k, v in table.items() if k in common or "name" not in table}}
    values[head] = table


def method_overrides(text: str) -> list[str]:
    """A method with options of its own in one word, fedrep:head_epochs=5, as key=value words."""
    name, _, given = text.partition(":")
    return [f"method={name}", *(f"method.{word}" for word in given.split(",") if word)]


def _table(value: Any) -> dict[str, Any]:
    """`method = "fedrep"` is short for a table with only a name."""
    return dict(value) if isinstance(value, Mapping) else {"name": value}


def _chosen(kind: str, tables: dict[str, dict[str, Any]], default: str) -> Any:
    fields = dict(tables[kind])
    return CHOICES[kind].build(fields.pop("name", default), fields)


def check_keys(values: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Refuse a key that is none of a config's, nor one of `more`."""
    allowed = [*CHOICES, *options_of(Settings), *more]
    for key in values:
        if key not in allowed:
            raise FedTailorError(f"Unknown key '{key}'.{nearest(key, allowed)} Allowed: {', '.join(allowed)}.")


def options_of(cls: type) -> list[str]:
    return [option.name for option in options(cls)]


def _given(part: Any) -> dict[str, Any]:
    """The options that have a value; files are named in full, so that a config runs from any folder."""
    given = {k: v for k, v in dataclasses.asdict(part).items() if v is not None}
    return {k: str(Path(v).resolve()) if k in FILES and v and os.path.exists(v) else v for k, v in given.items()}


def _parse(text: str) -> Any:
    """A TOML value if it is one, else the text itself."""
    try:
        read = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    return read["v"] if len(read) == 1 else text  # a line break in the text may have begun another key


def toml_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # JSON takes it as it is, TOML does not
