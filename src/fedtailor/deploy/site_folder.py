"""A site's own folder, and what its site.toml says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.data.description import Description
from fedtailor.deploy.policy import Policy
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import read_toml

OWN = (
    "data",
    "partition",
    "net",
    "device",
    "clients",
    "partition_seed",
)  # the keys of a run's config that a site sets itself
KEYS = ("client", "name", "server", "shared", "description", "policy", *OWN)


@dataclass(frozen=True)
class SiteFolder:
    """A site's own folder, and the values of its site.toml."""

    folder: Path
    client: int | None  # None for a newcomer
    name: str
    server: str
    shared: bool  # whether all sites have the same data set, of which this site uses its part
    policy: Policy
    own: dict[str, Any]  # its own part of a run's config: data, files and device
    description: Description | None = None  # of what data means: if its operator has one, the only one that is accepted

    @classmethod
    def open(cls, folder: Path) -> SiteFolder:
        folder = folder.resolve()
        if not (folder / "site.toml").is_file():
            raise FedTailorError(f"'{folder}' is not the folder of a site: it has no site.toml.")
        said = read_toml(folder / "site.toml")
        strange = sorted(set(said) - set(KEYS))
        if strange:
            raise FedTailorError(f"site.toml has unknown keys: {', '.join(strange)}. Allowed: {', '.join(KEYS)}.")
        client = said.get("client")
        if not (client is None or (isinstance(client, int) and client >= 0)):
            raise FedTailorError(f"site.toml says client = {client!r}, which is not a client's number.")
        server = str(said.get("server", ""))
        if not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", server):
            raise FedTailorError(
                f"site.toml says server = {server!r}; expected host:port, such as fed.example.org:9092."
            )
        if "data" not in said:
            raise FedTailorError(
                "site.toml names no data: add a table [data] with name, path … as `fedtailor datasets table` lists them."
            )
        policy = Policy.read(said.get("policy"))
        own = {key: said[key] for key in OWN if key in said}
        name = str(said.get("name") or folder.name)
        description = Description.load(folder / str(said["description"])) if "description" in said else None
        return cls(folder, client, name, server, bool(said.get("shared", False)), policy, own, description)
