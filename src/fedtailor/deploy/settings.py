"""The terms of a federation: a run's config, and how the server deals with its sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedtailor.deploy import PORT
from fedtailor.experiment.config import Config, apply_override, check_keys, options_of, write_toml
from fedtailor.registry import build, option


@dataclass(frozen=True)
class DeploySettings:
    """What a deployment has beside the config of its run."""

    federation: str = option("", "name under which the sites keep their states")
    listen: str = option("0.0.0.0", "address of the server's machine that it listens on")
    port: int = option(PORT, "port that the server listens on", at_least=0, at_most=65535)
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


def from_words(values: dict[str, Any], words: Iterable[str]) -> tuple[DeploySettings, Config]:
    """DeploySettings and config from the values of a TOML file with key=value words laid over them."""
    for word in words:
        apply_override(values, word)
    return split(values)


def guarded(terms: DeploySettings, clients: int) -> DeploySettings:
    """Let no site outweigh all others by the number of samples it tells. Two sites would weigh the same, so these are left alone."""
    return replace(terms, max_share=0.5) if clients >= 3 else terms


def split(values: Mapping[str, Any]) -> tuple[DeploySettings, Config]:
    own = options_of(DeploySettings)
    check_keys(values, own)
    terms = build(DeploySettings, {k: v for k, v in values.items() if k in own})
    return terms, Config.from_values({k: v for k, v in values.items() if k not in own})


def to_toml(terms: DeploySettings, config: Config) -> str:
    return write_toml({**asdict(terms), **config.values()})
