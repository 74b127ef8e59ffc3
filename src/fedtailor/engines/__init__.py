"""Engines carry payloads between the server and the workers that own the clients' states. They never look into a payload."""

from fedtailor.engines.base import Engine, Outcome
from fedtailor.engines.inline import Inline

engines: dict[str, type[Inline]] = {"inline": Inline}

__all__ = ["Engine", "Inline", "Outcome", "engines"]
