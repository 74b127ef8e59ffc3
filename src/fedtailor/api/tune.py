"""Tune methods with equal budgets, for themselves or before a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from fedtailor.api.plan import USUAL, plan, run_name
from fedtailor.api.run import AnyNet, Data, given, new_folder, set_method, values_of
from fedtailor.attacks import Attack
from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks
from fedtailor.experiment.config import TABLES, Config, Settings
from fedtailor.experiment.hostile import Given
from fedtailor.experiment.options import RunOptions, keywords_of
from fedtailor.experiment.progress import Progress
from fedtailor.methods import Method
from fedtailor.registry import options
from fedtailor.robust import RobustMean
from fedtailor.tuning.space import search_space
from fedtailor.tuning.tune import TUNING, OnTrial, Tuned, tune_method

BUDGET = 12  # trials per method by default


@keywords_of(Settings)
def tune(
    federation: Data,
    methods: str | Method | Sequence[str | Method] = USUAL,
    *,
    budget: int = BUDGET,
    net: AnyNet | None = None,
    head: str | None = None,
    out: str | PathLike[str] | None = None,
    callbacks: Callbacks | None = None,
    privacy: Mapping[str, Any] | None = None,
    robust: RobustMean | Given | None = None,
    attack: Attack | Given | None = None,
    **options: Unpack[RunOptions],
) -> dict[str, Tuned]:
    """Search the settings of each method with the same number of trials, judged on validation samples of the clients.

    What is given as a keyword, or as an option of a method, stays as it is; the rest of what methods declare is searched. The same call
    with the same `out` resumes an interrupted search, and a larger `budget` goes on with it.

    >>> tuned = ft.tune(federation, ["fedrep", "ditto"], budget=12, rounds=20, out="runs/t")
    >>> sorted(tuned["ditto"].values)
    ['lr', 'method.lam', 'optimizer', 'server_optimizer']
    """
    asked = [methods] if isinstance(methods, str | Method) else list(methods)
    values = values_of(federation, net, head, options, privacy=privacy, robust=robust, attack=attack)
    fixed = fixed_keys(federation, options)
    path = Path(out) if out is not None else new_folder(TUNING)
    return tune_all(values, asked, budget, path, *given(federation, net), fixed=fixed, callbacks=callbacks)


def tune_all(
    values: Mapping[str, Any],
    methods: Sequence[str | Method],
    budget: int,
    path: Path,
    federation: Federation | None = None,
    net: nn.Module | None = None,
    *,
    fixed: Collection[str] | None = None,
    callbacks: Callbacks | None = None,
    on_trial: OnTrial | None = None,
) -> dict[str, Tuned]:
    """Tune all methods on the same federation, each in a folder of its own below `path`; `fixed` are the keys that are given."""
    if budget < 1:
        raise FedTailorError(f"A budget of {budget} trials is not allowed: expected at least 1 per method.")
    plain = [key for key in values if key not in TABLES] if fixed is None else fixed
    plans = plan(values, methods, [int(values.get("seed", 0))], path)
    spaces = [search_space(config, {*plain, *_own_keys(m)}) for config, m in zip(plans.values(), methods, strict=True)]
    federation = next(iter(plans.values())).federation() if federation is None else federation
    callbacks = [Progress()] if callbacks is None else callbacks
    tuned: dict[str, Tuned] = {}
    for method, config, space in zip(methods, plans.values(), spaces, strict=True):
        name = run_name(config.method.name, method)
        tuned[name] = tune_method(name, config, space, budget, path / name, federation, net, callbacks, on_trial)
    return tuned


def _own_keys(method: str | Method) -> set[str]:
    """Return the options that were given to a method, as keys of a config."""
    if isinstance(method, Method):
        return {f"method.{o.name}" for o in options(type(method)) if getattr(method, o.name) != o.default}
    values: dict[str, Any] = {}
    set_method(values, method)
    return {f"method.{key}" for key in values["method"] if key != "name"}


def fixed_keys(federation: Data, given: Collection[str]) -> set[str]:
    """Return the plain keys that tuning leaves as they are: those given, and those of a config that are not the defaults."""
    changed = set()
    if isinstance(federation, Config):
        changed = {o.name for o in options(Settings) if getattr(federation.settings, o.name) != o.default}
    return changed | set(given)
