"""The folder of a federation: its settings, the keys of its server and sites, and one folder per site to take to its own machine."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedtailor.deploy import HERE as HERE  # offered here too
from fedtailor.deploy.policy import Policy
from fedtailor.deploy.readme import readme
from fedtailor.deploy.settings import DeploySettings, split, to_toml
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config, apply_override, read_toml

NEWCOMER = re.compile(r"[a-z][\w-]{0,40}", re.IGNORECASE)


@dataclass(frozen=True)
class DeployFolder:
    """The folder of a federation's server. `sites/` holds one folder per site, to be taken to the site's own machine."""

    path: Path

    @classmethod
    def create(cls, path: Path, settings: DeploySettings, config: Config, hosts: Sequence[str]) -> DeployFolder:
        """Create the folder. `hosts` are the server's names and addresses as sites reach it, the preferred one first."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedTailorError(f"'{path}' is not empty. Choose another folder.")
        if config.settings.clients < 1:
            raise FedTailorError("A federation needs to know how many sites it has: give clients=4, for example.")
        if hasattr(config.method, "file"):
            raise FedTailorError(
                f"A method in a file of its own ('{config.method.file}') cannot be deployed: each site runs only what is installed "
                "there. Put it into a package that registers it, or into FedTailor."
            )
        from fedtailor.deploy.keys import certify_server, make_authority  # `cryptography` comes with Flower

        path = path.resolve()
        name = re.sub(r"[^\w-]", "-", path.name)[:40]
        folder = cls(path)
        for place in (folder.keys / "sites", folder.keys / "newcomers"):
            place.mkdir(parents=True)
        path.chmod(0o700)
        make_authority(folder.keys)
        certify_server(folder.keys, list(dict.fromkeys([*hosts, "localhost", HERE])))
        settings = replace(settings, federation=f"{name}-{secrets.token_hex(4)}")
        (path / "federation.toml").write_text(to_toml(settings, config))
        for i in range(config.settings.clients):
            folder._write_site(str(i), folder._site_values(i, f"{hosts[0]}:{settings.port}", config))
        (path / "README.md").write_text(readme(config, hosts[0], settings.port))
        return folder

    @classmethod
    def open(cls, path: Path) -> DeployFolder:
        folder = cls(path.resolve())
        if not (folder.path / "federation.toml").is_file():
            raise FedTailorError(f"'{path}' is not the folder of a federation: it has no federation.toml.")
        return folder

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    def site(self, name: int | str) -> Path:
        return self.path / "sites" / str(name)

    def settings(self) -> tuple[DeploySettings, Config]:
        """Read federation.toml."""
        return split(read_toml(self.path / "federation.toml"))

    def admitted(self) -> dict[str, tuple[int | None, Path]]:
        """Return name -> client number (None for newcomers) and certificate, of every site whose certificate is here.

        To shut a site out, delete its certificate and restart the server.
        """
        sites = {file.stem: (int(file.stem), file) for file in sorted((self.keys / "sites").glob("*.crt"))}
        newcomers = {file.stem: (None, file) for file in sorted((self.keys / "newcomers").glob("*.crt"))}
        return {**sites, **newcomers}

    def admit(self, name: str, words: Sequence[str] = ()) -> Path:
        """Make the folder of a site that joins later, with a key of its own; `words` name its data."""
        if not NEWCOMER.fullmatch(name):
            raise FedTailorError(f"'{name}' is no name for a site: use letters, digits, - and _, a letter first.")
        if self.site(name).exists():
            raise FedTailorError(f"'{self.site(name)}' is there already. Choose another name.")
        _, config = self.settings()
        values: dict[str, Any] = {}
        for word in words:
            apply_override(values, word)
        data = values.pop("data", None) or OWN_DATA
        if values:
            raise FedTailorError(
                f"{', '.join(values)}: only options of the new site's data (data=… data.path=…) are allowed."
            )
        server = read_toml(self.site(0) / "site.toml")["server"]
        policy = asdict(Policy.for_run(config))
        self._write_site(name, {"name": name, "server": server, "data": data, "policy": policy})
        return self.site(name)

    def _site_values(self, client: int, server: str, config: Config) -> dict[str, Any]:
        """Return the values of a site's site.toml; where all sites have the same data set, also how it is partitioned."""
        values = config.values()
        own = config.data.name == "sites"
        said: dict[str, Any] = {"client": client, "name": f"site-{client}", "server": server}
        if own:
            return {**said, "data": OWN_DATA, "policy": asdict(Policy.for_run(config))}
        seed = config.settings.seed if config.settings.partition_seed is None else config.settings.partition_seed
        said |= {"shared": True, "clients": config.settings.clients, "partition_seed": seed}
        tables = {"data": values["data"], "partition": values["partition"]}
        if values["net"].get("weights"):
            tables["net"] = {"weights": values["net"]["weights"]}
        return {**said, **tables, "policy": asdict(Policy.for_run(config))}

    def _write_site(self, name: str, values: dict[str, Any]) -> None:
        from fedtailor.deploy.keys import certify_site

        place = self.site(name)
        place.mkdir(parents=True)
        place.chmod(0o700)
        kind = "sites" if "client" in values else "newcomers"
        certify_site(self.keys, name, place / "node.key", place / "node.crt")
        shutil.copyfile(place / "node.crt", self.keys / kind / f"{name}.crt")
        shutil.copyfile(self.keys / "ca.crt", place / "ca.crt")
        text = (
            tomli_w.dumps(values)
            .replace("\n[data]\n", f"\n{DATA}[data]\n")
            .replace("\n[policy]\n", f"\n{POLICY}[policy]\n")
        )
        with os.fdopen(os.open(place / "site.toml", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text)


OWN_DATA = {"name": "table", "path": "data.csv", "label": "label"}

DATA = """\
# This site's data; `fedtailor datasets table` (or folder, arrays) lists the options. Paths are seen from this folder.
"""

POLICY = """\
# What this site agrees to. If the server asks for more, the site refuses and tells it why.
"""
