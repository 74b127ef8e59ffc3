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

from fedtailor.data.description import Description
from fedtailor.data.sites import united
from fedtailor.deploy import HERE as HERE  # offered here too
from fedtailor.deploy.known_sites import KnownSites
from fedtailor.deploy.policy import Policy
from fedtailor.deploy.readme import readme
from fedtailor.deploy.settings import DeploySettings, split, to_toml
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config, apply_override, read_toml
from fedtailor.experiment.run_folder import RunFolder

NEWCOMER = re.compile(r"[a-z][\w-]{0,40}", re.IGNORECASE)


@dataclass(frozen=True)
class DeployFolder:
    """The folder of a federation's server. `sites/` holds one folder per site, to be taken to the site's own machine."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        settings: DeploySettings,
        config: Config,
        hosts: Sequence[str],
        description: Path | None = None,
    ) -> DeployFolder:
        """Create the folder. `hosts` are the server's names and addresses as sites reach it, the preferred one first.

        Server and sites get the file of a `description` if there is one, and then disclose nothing of what their data means.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedTailorError(f"'{path}' is not empty. Choose another folder.")
        if config.settings.clients < 1:
            raise FedTailorError("A federation needs to know how many sites it has: give clients=4, for example.")
        if hasattr(config.method, "file"):
            raise FedTailorError(
                f"A method in a file of its own ('{config.method.file}') cannot be deployed: each site runs only what is installed "
                "there. Put it into a package that registers it, or into FedTailor."
            )
        if description is not None and config.data.name != "sites":
            raise FedTailorError(f"All sites have {config.data.name}, which describes itself: leave out --description.")
        if description is not None:
            Description.load(description)
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
        if description is not None:
            shutil.copyfile(description, folder.description)
        for i in range(config.settings.clients):
            values = folder._site_values(i, f"{hosts[0]}:{settings.port}", config)
            folder._write_site(str(i), values, folder.description)
        (path / "README.md").write_text(readme(config, hosts[0], settings.port, described=description is not None))
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

    @property
    def description(self) -> Path:
        """The file of the description by which all sites are to read their data, if there is one."""
        return self.path / "description.json"

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
        agreed = RunFolder(self.run).description  # by which a newcomer has to read its data too
        agreed = agreed if agreed.exists() else self.description
        policy = asdict(Policy.for_run(config, agreed.exists()))
        self._write_site(name, {"name": name, "server": server, "data": data, "policy": policy}, agreed)
        return self.site(name)

    def describe(self) -> list[str]:
        """Merge what the sites of a refused federation disclosed into a description; return what is not in it, in words."""
        found, notes = united(KnownSites(self.path / "members").refused())
        try:
            Description.read(found.plain())  # sites may together have said more than a description holds
        except ValueError as problem:
            raise FedTailorError(f"What the sites disclosed cannot be merged: {problem}.") from None
        found.write(self.description)
        return notes

    def _site_values(self, client: int, server: str, config: Config) -> dict[str, Any]:
        """Return the values of a site's site.toml; where all sites have the same data set, also how it is partitioned."""
        values = config.values()
        own = config.data.name == "sites"
        said: dict[str, Any] = {"client": client, "name": f"site-{client}", "server": server}
        if own:
            policy = Policy.for_run(config, self.description.exists())
            return {**said, "data": OWN_DATA, "policy": asdict(policy)}
        seed = config.settings.seed if config.settings.partition_seed is None else config.settings.partition_seed
        said |= {"shared": True, "clients": config.settings.clients, "partition_seed": seed}
        tables = {"data": values["data"], "partition": values["partition"]}
        if values["net"].get("weights"):
            tables["net"] = {"weights": values["net"]["weights"]}
        return {**said, **tables, "policy": asdict(Policy.for_run(config))}

    def _write_site(self, name: str, values: dict[str, Any], description: Path) -> None:
        from fedtailor.deploy.keys import certify_site

        place = self.site(name)
        place.mkdir(parents=True)
        place.chmod(0o700)
        kind = "sites" if "client" in values else "newcomers"
        certify_site(self.keys, name, place / "node.key", place / "node.crt")
        shutil.copyfile(place / "node.crt", self.keys / kind / f"{name}.crt")
        shutil.copyfile(self.keys / "ca.crt", place / "ca.crt")
        if description.exists():
            shutil.copyfile(description, place / "description.json")
            values = {"description": "description.json", **values}
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
# may_describe lists what it tells of its data before the first round, so that all sites can check that their data means the same.
"""
