"""Limits on what a file or an option may ask for: absurd sizes are refused before memory is allocated.

The limits are the same on every machine, so that a config runs either everywhere or nowhere; an environment variable raises each.
"""

from __future__ import annotations

import math
import os

from fedtailor.errors import FedTailorError

GB = 10**9
DEFAULTS = {"GB": 4, "CLASSES": 100_000, "TOKENS": 1_000_000}


def limit(kind: str) -> int:
    """Return the limit of a kind: FEDTAILOR_MAX_<kind> if set, else the default."""
    variable = f"FEDTAILOR_MAX_{kind}"
    value = os.environ.get(variable, "")
    if not value:
        return DEFAULTS[kind]
    if not value.isdecimal() or not 0 < len(value) < 16 or int(value) == 0:
        raise FedTailorError(f"{variable}={value!r} is not a limit: expected a whole number of at least 1.")
    return int(value)


def limit_bytes() -> int:
    """Return the most bytes that one file may unpack to, or that one array or net may take."""
    return limit("GB") * GB


def check_bytes(needed: int, what: object) -> None:
    """Refuse anything that would take more memory than the limit; `what` names it in the error."""
    if needed > limit_bytes():
        raise too_large(what, f"{needed / GB:,.1f} GB", "GB", math.ceil(needed / GB))


def check_count(count: int, kind: str, what: object) -> None:
    """Refuse more classes or token ids than the limit."""
    if count > limit(kind):
        raise too_large(what, f"{count:,} {kind.lower()}", kind, count)


def too_large(what: object, needed: str, kind: str, enough: int | None = None) -> FedTailorError:
    """Make the error for exceeding a limit; `enough` is a sufficient limit, if known."""
    unit = "GB" if kind == "GB" else kind.lower()
    raised = f"FEDTAILOR_MAX_{kind}={2 * limit(kind) if enough is None else enough}"
    return FedTailorError(
        f"{what}: {needed} where the limit is {limit(kind):,} {unit}. It is damaged, or of another kind than it should be; if it is right, "
        f"set the environment variable {raised}."
    )
