"""The format number of what a run writes, and what became of keys that earlier formats had.

Format 1 has no number: it is what version 0.1 wrote. Raise FORMAT when an earlier version could not read what this one writes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from fedtailor.errors import FedTailorError

log = logging.getLogger("fedtailor")

FORMAT = 2  # of config.toml and checkpoint.json

RETIRED = {  # key of a config -> what a user should know
    "compile": "steps are no longer compiled",
}


def check_format(values: Mapping[str, Any], where: object) -> None:
    """Refuse what a newer version wrote."""
    number = values.get("format", 1)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise FedTailorError(
            f"{where} has format {number!r}, and this version of FedTailor reads 1 to {FORMAT}: install the version that wrote it."
        )


def without_retired(values: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the values without retired keys, each noted once; a key that is `known` is in use."""
    retired = RETIRED.keys() - set(known)
    for key in retired & values.keys():
        _note(key)
    return {key: value for key, value in values.items() if key not in retired}


@cache
def _note(key: str) -> None:
    log.warning("The key '%s' is ignored: %s.", key, RETIRED[key])
