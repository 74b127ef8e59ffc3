"""The folder of a federation: what its server and its sites need, with the exact commands to start them."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtailor.deploy.readme import readme
from fedtailor.deploy.terms import Terms, from_flat, to_flat
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config, lay_over, read_toml, write_toml

APP = {"publisher": "fedtailor", "fab-format-version": 1, "flwr-version-target": "1.41.0"}
# No code travels: both ends run what is installed there.
COMPONENTS = {"serverapp": "fedtailor.deploy.server:app", "clientapp": "fedtailor.deploy.doorway:app"}
CONNECTION = "federation"  # the name that Flower's commands know the server by


@dataclass(frozen=True)
class DeployFolder:
    """Where a federation's server lives. `sites/` holds a folder for each site, to be taken to the site's own machine."""

    path: Path

    @classmethod
    def create(
        cls, path: Path, terms: Terms, config: Config, hosts: Sequence[str], port: int, *, tls: bool
    ) -> DeployFolder:
        """`hosts` are the names and addresses of the server as its sites reach it, the one to use first."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FedTailorError(f"'{path}' is not empty. Choose another folder.")
        if config.settings.clients < 1:
            raise FedTailorError("A federation needs to know how many sites it has: give clients=4, for example.")
        if hasattr(config.method, "file"):
            raise FedTailorError(
                f"A method in a file of its own ('{config.method.file}') cannot be deployed: each site runs only what is installed "
                "there. Put it into a package that registers it, or into FedTailor."
            )
        path = path.resolve()
        name = f"{path.name}-{secrets.token_hex(4)}"
        folder = cls(path)
        for place in (folder.app, folder.flower, folder.logs, *([folder.keys] if tls else [])):
            place.mkdir(parents=True)
        if tls:
            from fedtailor.deploy.keys import certify_server, make_authority  # `cryptography` comes with Flower

            make_authority(folder.keys)
            certify_server(folder.keys, list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"])))
        folder._write_app(replace(terms, federation=name, folder=str(path)), config)
        for i in range(config.settings.clients):
            folder.write_site(i, OWN_DATA if config.data.name == "sites" else SHARED_DATA.format(config.data.name))
        folder.connect(f"127.0.0.1:{port}")
        (path / "README.md").write_text(readme(config, hosts[0], port, tls=tls))
        return folder

    @classmethod
    def open(cls, path: Path) -> DeployFolder:
        folder = cls(path.resolve())
        if not (folder.app / "pyproject.toml").is_file():
            raise FedTailorError(f"'{path}' is not the folder of a federation: it has no app/pyproject.toml.")
        return folder

    @property
    def app(self) -> Path:
        return self.path / "app"

    @property
    def flower(self) -> Path:
        return self.path / "flower"

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
    def tls(self) -> bool:
        return self.keys.exists()

    @property
    def newcomer_model(self) -> Path:
        return self.site("newcomer") / "models" / "newcomer.safetensors"

    def site(self, client: int | str) -> Path:
        return self.path / "sites" / str(client)

    def terms(self) -> tuple[Terms, Config]:
        return from_flat(read_toml(self.app / "pyproject.toml")["tool"]["flwr"]["app"]["config"])

    def connect(self, address: str) -> None:
        """Tell Flower's commands where the server is."""
        how = f'root-certificates = "{self.keys / "ca.crt"}"' if self.tls else "insecure = true"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{how}\n'
        (self.flower / "config.toml").write_text(text)

    def write_site(self, client: int, data: str) -> None:
        place = self.site(client)
        place.mkdir(parents=True)
        (place / "site.toml").write_text(f"client = {client}\n{data}")
        self.give_key(client)

    def write_newcomer(self, words: Sequence[str]) -> None:
        """The folder of a site that has no number yet; `words` name its data."""
        values: dict[str, Any] = {}
        for word in words:
            lay_over(values, word)
        place = self.site("newcomer")
        place.mkdir(parents=True, exist_ok=True)
        (place / "site.toml").write_text(write_toml({"name": "newcomer", **values}))
        self.give_key("newcomer")

    def give_key(self, site: int | str) -> None:
        """With TLS, a key of its own for a site, and the certificate by which it knows the server."""
        place = self.site(site)
        if self.tls and not (place / "node.key").exists():
            from fedtailor.deploy.keys import make_node_key

            make_node_key(place / "node.key", self.keys / f"node-{site}.pub")
            shutil.copy(self.keys / "ca.crt", place / "ca.crt")

    def _write_app(self, terms: Terms, config: Config) -> None:
        project: dict[str, Any] = {
            "name": "federation",
            "version": "1.0.0",
            "description": f"A federation of {config.settings.clients} sites that runs {config.method.name}",
            "dependencies": ["flwr>=1.41,<1.42", "fedtailor"],
        }
        tables: Mapping[str, Mapping[str, Any]] = {
            "project": project,
            "project.license": {"file": "LICENSE"},
            "tool.flwr.app": APP,
            "tool.flwr.app.components": COMPONENTS,
            "tool.flwr.app.config": {f'"{key}"': value for key, value in to_flat(terms, config).items()},
        }
        (self.app / "pyproject.toml").write_text(write_toml(tables))
        (self.app / "LICENSE").write_text("SPDX-License-Identifier: Apache-2.0\n")


SHARED_DATA = """\
# This site's data is its part of {}, which every site deals alike.
"""

OWN_DATA = """\
name = "my-site"

# This site's own data; `fedtailor datasets table` (or folder, arrays) lists the options.
[data]
name = "table"
path = "data.csv"
label = "label"
"""
