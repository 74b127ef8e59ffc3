"""The exception for user errors: it says what was wrong, where, and what to do; the command line shows it without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class FedTailorError(Exception):
    """A mistake that the user can fix: a misspelled key, a missing file, an impossible request."""


def nearest(word: str, allowed: Iterable[str], names: Mapping[str, str] | None = None) -> str:
    """Return ' Did you mean …?' if an allowed word is close to `word`, else an empty string; `names` replace aliases among the words."""
    close = difflib.get_close_matches(word.lower(), list(allowed), n=1, cutoff=0.5)
    return f" Did you mean '{(names or {}).get(close[0], close[0])}'?" if close else ""
