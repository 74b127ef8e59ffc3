"""The runs of a comparison: the folder and config of each."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.api.run import set_method
from fedtailor.experiment.config import ASIDE, Config
from fedtailor.methods import Method
from fedtailor.registry import differing
from fedtailor.tuning.space import Values, replaced

log = logging.getLogger("fedtailor")

USUAL = ("local", "fedavg", "fedper", "fedrep")  # the methods compared by default


def plan(
    values: Mapping[str, Any],
    methods: Sequence[str | Method],
    seeds: Sequence[int],
    path: Path,
    chosen: Mapping[str, Values] | None = None,
) -> dict[Path, Config]:
    """Return the folder and config of each run; all methods get the same data, even if only one needs proxy samples at the server.

    `chosen` are the settings that tuning chose for a method, by its `run_name`.
    """
    configs: dict[Path, Config] = {}
    for method in methods:
        for seed in seeds:
            own = copy.deepcopy(dict(values)) | {"seed": seed}
            set_method(own, method)
            config = Config.from_values(own)
            name = run_name(config.method.name, method)
            configs[path / f"{name}-s{seed}"] = replaced(config, (chosen or {}).get(name, {}))
    if len({config.server_share for config in configs.values()}) > 1:
        log.warning(
            "One of the methods needs proxy samples: %g %% of the data goes to the server in every run.", 100 * ASIDE
        )
        configs = {folder: config.with_server_share(ASIDE) for folder, config in configs.items()}
    return _completed(configs)


def _completed(configs: Mapping[Path, Config]) -> dict[Path, Config]:
    """Give all runs the net and the number of clients that the samples of the first decide, where none are named."""
    if all(config.complete for config in configs.values()):
        return dict(configs)
    first = next(iter(configs.values())).completed()
    clients = first.settings.clients
    return {
        folder: replace(config, net=first.net, settings=replace(config.settings, clients=clients))
        for folder, config in configs.items()
    }


def run_name(name: str, method: str | Method) -> str:
    """Return the folder's name for a method with its own options: fedrep:head_epochs=5 becomes fedrep-head_epochs-5."""
    options = differing(method).partition("(")[2] if isinstance(method, Method) else method.partition(":")[2]
    return "-".join(re.findall(r"[\w.+-]+", f"{name} {options}"))
