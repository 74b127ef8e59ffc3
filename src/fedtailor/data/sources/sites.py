"""Data that exists only at the sites of a real federation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedtailor.data.pool import Pool, Source, sources
from fedtailor.errors import FedTailorError


@sources.register("sites")
@dataclass(frozen=True)
class Sites(Source):
    """In a real federation (fedtailor deploy): every site has data of its own, which its site.toml names."""

    @property
    def fitting_partition(self) -> str:
        return "natural"

    def read(self, root: Path) -> Pool:
        raise FedTailorError(
            "data=sites says that the samples are at the sites of a real federation, so there is nothing to read here. At a site, name "
            "its own data in site.toml; for a run on this machine, choose a data set (fedtailor datasets)."
        )
