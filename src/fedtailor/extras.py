"""Packages that not everybody needs: what is missing, and what to type."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

from fedtailor.errors import FedTailorError

log = logging.getLogger(__name__)


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Turn a missing package into a sentence: `what` needs it, and the extra `name` of FedTailor brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise FedTailorError(
            f"{what} needs {package}, which is not installed:  pip install 'fedtailor[{name}]'"
        ) from None


@cache
def can_draw() -> bool:
    """Whether matplotlib is installed; if not, that is said once, and pictures nobody asked for are left out."""
    if find_spec("matplotlib") is not None:
        return True
    log.warning("Pictures are left out: they need matplotlib.  pip install 'fedtailor[report]'")
    return False
