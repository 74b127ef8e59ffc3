"""The search space of a method: the options that declare where tuning looks, without those that are given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config
from fedtailor.learning.protocol import Protocol
from fedtailor.registry import Search, options

ADAM = 0.02  # learning rates are drawn on the scale of SGD, and so much smaller with Adam
DIGITS = 3  # of a drawn number: no more matter, and people copy them

Space = dict[str, Search]  # by the key of a config, such as lr or method.head_epochs
Values = Mapping[str, Any]


def search_space(config: Config, given: Collection[str] = ()) -> Space:
    """Return where to look for the best settings of a config's method; options whose value is `given` stay as they are."""
    declared = {
        **{o.name: o.search for o in options(Protocol)},
        **{f"method.{o.name}": o.search for o in options(type(config.method))},
    }
    if not config.method.averaged:
        declared["server_optimizer"] = None
    space = {key: search for key, search in declared.items() if search and key not in given}
    if not space:
        raise FedTailorError(
            f"Nothing is left to tune for '{config.method.name}': all that could be searched is given."
        )
    return space


def defaults(config: Config, space: Space) -> Values:
    """Return the values that the config has, for the first trial; those outside the search space are left to be drawn."""
    own = values_of(config, space)
    return {key: own[key] for key in space if own[key] in space[key]}


def rounded(drawn: Mapping[str, Any]) -> Values:
    return {key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in drawn.items()}


def with_drawn(config: Config, drawn: Values) -> Config:
    """Return a config with the values that a trial has drawn."""
    values = dict(drawn)
    if values.get("optimizer", config.settings.optimizer) != "sgd" and "lr" in values:
        values["lr"] = float(f"{ADAM * values['lr']:.{DIGITS}g}")
    return replaced(config, values)


def replaced(config: Config, values: Values) -> Config:
    """Return a config with other values for some keys."""
    own = {key.removeprefix("method."): value for key, value in values.items() if key.startswith("method.")}
    plain = {key: value for key, value in values.items() if not key.startswith("method.")}
    return replace(config, settings=replace(config.settings, **plain), method=replace(config.method, **own))


def values_of(config: Config, keys: Iterable[str]) -> Values:
    """Return what a config has for some keys, such as lr and method.head_epochs."""
    flat = {**vars(config.settings), **{f"method.{name}": value for name, value in vars(config.method).items()}}
    return {key: flat[key] for key in keys}
