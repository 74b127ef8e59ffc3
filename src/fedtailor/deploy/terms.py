"""The terms of a federation: a run's config and how the server deals with its sites, as Flower's flat run config carries them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fedtailor.experiment.config import Config, check_keys, lay_over, options_of, toml_value
from fedtailor.registry import build, option


@dataclass(frozen=True)
class Terms:
    """What a deployment has beside the config of its run."""

    federation: str = option("", "name under which the sites keep their states")
    folder: str = option("", "the server's folder for the run and what it knows of the sites")
    work: Literal["run", "welcome"] = option("run", "run the federation, or welcome newcomers to the finished one")
    wait: float = option(600.0, "seconds to wait for all sites before the first round", above=0.0)
    timeout: float = option(600.0, "seconds to wait for the answers to a message", above=0.0)
    min_replies: int = option(1, "with fewer useful answers a round is given up, and the run with it", at_least=1)
    max_reply_mb: float = option(512.0, "an answer with more megabytes is refused", above=0.0)
    max_share: float = option(
        1.0,
        "a site counts for at most this share of a round's mean, or as all do where they are too few",
        above=0.0,
        at_most=1.0,
    )


def from_words(values: dict[str, Any], words: Iterable[str]) -> tuple[Terms, Config]:
    """Terms and config from the values of a TOML file with key=value words laid over them."""
    for word in words:
        lay_over(values, word)
    return split(values)


def guarded(terms: Terms, clients: int) -> Terms:
    """Let no site outweigh all others by the number of samples it tells. Two sites would weigh the same, so these are left alone."""
    return replace(terms, max_share=0.5) if clients >= 3 else terms


def from_flat(flat: Mapping[str, Any]) -> tuple[Terms, Config]:
    """From Flower's run config, in which tables are dotted keys and lists are text."""
    return split(nested(flat))


def split(values: Mapping[str, Any]) -> tuple[Terms, Config]:
    own = options_of(Terms)
    check_keys(values, own)
    terms = build(Terms, {k: v for k, v in values.items() if k in own})
    return terms, Config.from_values({k: v for k, v in values.items() if k not in own})


def to_flat(terms: Terms, config: Config) -> dict[str, Any]:
    flat = dict(asdict(terms))
    for key, value in config.values().items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": _scalar(v) for name, v in value.items()}
        else:
            flat[key] = _scalar(value)
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in flat.items():
        value = tomllib.loads(f"v = {value}")["v"] if isinstance(value, str) and value.startswith("[") else value
        head, dot, name = key.partition(".")
        if dot:
            values.setdefault(head, {})[name] = value
        else:
            values[key] = value
    return values


def digest(config: Config) -> str:
    """Of all that server and sites must agree on; where data comes from is each one's own affair."""
    values = {k: v for k, v in config.values().items() if k not in ("data", "partition", "engine", "workers", "device")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _scalar(value: Any) -> Any:
    return toml_value(value) if isinstance(value, tuple | list) else value
