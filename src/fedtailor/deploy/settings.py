"""The settings of a federation: a run's config, and how the server treats its sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import tomli_w

from fedtailor.deploy import PORT
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config, Settings, apply_override, check_keys, options_of
from fedtailor.experiment.formats import FORMAT, without_retired
from fedtailor.registry import build, option


@dataclass(frozen=True)
class DeploySettings:
    """The options of a deployment beside the config of its run."""

    federation: str = option("", "name under which the sites keep their states")
    listen: str = option("0.0.0.0", "address of the server's machine that it listens on")
    port: int = option(PORT, "port that the server listens on", at_least=0, at_most=65535)
    wait: float = option(600.0, "seconds to wait for all sites before the first round", above=0.0)
    timeout: float = option(600.0, "seconds to wait for the replies to a message", above=0.0)
    min_replies: int = option(1, "with fewer usable replies in a round, the run stops", at_least=1)
    max_reply_mb: float = option(512.0, "a larger reply, in megabytes, is refused", above=0.0)
    max_share: float = option(
        1.0,
        "a site's largest weight in a round's mean; all weigh the same where they are too few for it",
        above=0.0,
        at_most=1.0,
    )


def with_overrides(values: dict[str, Any], words: Iterable[str]) -> tuple[DeploySettings, Config]:
    """Return settings and config from the values of a TOML file with key=value overrides applied."""
    for word in words:
        apply_override(values, word)
    return split(values)


def with_limited_shares(settings: DeploySettings, clients: int) -> DeploySettings:
    """Let no site outweigh all others by the number of samples it claims. Two sites would then weigh the same, so these are exempt."""
    return replace(settings, max_share=0.5) if clients >= 3 else settings


def split(values: Mapping[str, Any]) -> tuple[DeploySettings, Config]:
    own = options_of(DeploySettings)
    values = without_retired(values, [*own, *options_of(Settings)])
    check_keys(values, own)
    settings = build(DeploySettings, {k: v for k, v in values.items() if k in own})
    config = Config.from_values({k: v for k, v in values.items() if k not in own})
    if config.attack is not None:
        raise FedTailorError(f"attack = {config.attack.name} is for simulations only. Leave it out of a deployment.")
    return settings, config


def to_toml(settings: DeploySettings, config: Config) -> str:
    return tomli_w.dumps({"format": FORMAT, **asdict(settings), **config.values()})
