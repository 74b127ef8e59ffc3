"""How large a thing may be that a file or an option asks for: the absurd is refused before memory is taken for it.

The limits are the same on every machine, so that a config either runs everywhere or nowhere; an environment variable raises each.
"""

from __future__ import annotations

import math
import os

from fedtailor.errors import FedTailorError

GB = 10**9
DEFAULTS = {"GB": 4, "CLASSES": 100_000, "TOKENS": 1_000_000}


def limit(kind: str) -> int:
    """The limit of a kind, as FEDTAILOR_MAX_<kind> or the default has it."""
    variable = f"FEDTAILOR_MAX_{kind}"
    said = os.environ.get(variable, "")
    if not said:
        return DEFAULTS[kind]
    if not said.isdecimal() or not 0 < len(said) < 16 or int(said) == 0:
        raise FedTailorError(f"{variable}={said!r} is not a limit: expected a whole number of at least 1.")
    return int(said)


def limit_bytes() -> int:
    """The most bytes that one file may unfold to, or one array or net may take."""
    return limit("GB") * GB


def check_bytes(needed: int, what: object) -> None:
    """Refuse what would take more memory than the limit; `what` names it."""
    if needed > limit_bytes():
        raise too_large(what, f"{needed / GB:,.1f} GB", "GB", math.ceil(needed / GB))


def check_count(count: int, kind: str, what: object) -> None:
    """Refuse more classes or token ids than the limit."""
    if count > limit(kind):
        raise too_large(what, f"{count:,} {kind.lower()}", kind, count)


def too_large(what: object, needed: str, kind: str, enough: int | None = None) -> FedTailorError:
    """The error for what goes beyond a limit; `enough` is a limit that would do, if it is known."""
    unit = "GB" if kind == "GB" else kind.lower()
    raised = f"FEDTAILOR_MAX_{kind}={2 * limit(kind) if enough is None else enough}"
    return FedTailorError(
        f"{what}: {needed} where the limit is {limit(kind):,} {unit}. It is damaged, or of another kind than it should be; if it is right, "
        f"set the environment variable {raised}."
    )
