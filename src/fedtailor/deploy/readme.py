"""The README of a federation's folder."""

from __future__ import annotations

from fedtailor.experiment.config import Config


def readme(config: Config, address: str, *, tls: bool) -> str:
    return "soon\n"
