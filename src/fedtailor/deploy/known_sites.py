"""What a server stores of its sites: their descriptions, and what they sent before the first round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedtailor.data.sites import SiteDescription
from fedtailor.errors import FedTailorError
from fedtailor.experiment.checkpoint import read_tensors, write_tensors
from fedtailor.experiment.run_folder import replace_text
from fedtailor.learning import Payload


class KnownSites:
    """Descriptions and hellos in the server's folder, so that a run can resume, and newcomers join, while some sites are offline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites: list[SiteDescription] = []
        self.hellos: dict[int, Payload] | None = None
        if self._list.exists():  # written last
            try:
                self._read()
            except Exception as problem:
                raise FedTailorError(
                    f"'{folder}' cannot be read ({type(problem).__name__}: {problem}). Delete it: the sites will be asked again."
                ) from None

    @property
    def _list(self) -> Path:
        return self.folder / "sites.json"

    @property
    def _refused(self) -> Path:
        return self.folder / "refused.json"

    def _read(self) -> None:
        self.sites = [SiteDescription.read(plain) for plain in json.loads(self._list.read_text())]
        self.hellos = {}
        for key, tensor in read_tensors(self.folder / "hellos.safetensors").items():
            client, _, name = key.partition("/")
            self.hellos.setdefault(int(client), {})[name] = tensor

    def record(self, sites: Sequence[SiteDescription], hellos: Mapping[int, Payload]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        flat = {f"{client}/{name}": t for client, payload in hellos.items() for name, t in payload.items()}
        write_tensors(self.folder / "hellos.safetensors", flat)
        replace_text(self._list, json.dumps([site.plain() for site in sites], indent=1))
        self._refused.unlink(missing_ok=True)
        self.sites, self.hellos = list(sites), dict(hellos)

    def record_refused(self, sites: Sequence[SiteDescription]) -> None:
        """Keep what sites said that could not agree, for `fedtailor deploy describe`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self._refused, json.dumps([site.plain() for site in sites], indent=1))

    def refused(self) -> list[SiteDescription]:
        """Return what the sites said when they last could not agree."""
        try:
            return [SiteDescription.read(plain) for plain in json.loads(self._refused.read_text())]
        except OSError:
            raise FedTailorError(
                "There is nothing to merge: no sites of this federation were refused because their data differs. `fedtailor data describe` "
                "makes a description from a table."
            ) from None
        except (ValueError, TypeError, RecursionError) as problem:
            raise FedTailorError(f"'{self._refused}' cannot be read: {problem}. Start the server again.") from None

    def forget(self) -> None:
        """Start over for a new run: sites may have come, gone or got more data since the last."""
        self._list.unlink(
            missing_ok=True
        )  # or a server killed before all sites are online would resume with the old ones
        self.sites, self.hellos = [], None
