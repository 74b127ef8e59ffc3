"""A site's data, read as the federation's description says or refused; what is wrong with it stays at the site."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fedtailor.data.description import Description, named
from fedtailor.data.federation import Federation
from fedtailor.data.sites import aspects, unfit
from fedtailor.deploy.site_folder import SiteFolder
from fedtailor.errors import FedTailorError
from fedtailor.experiment.config import Config

log = logging.getLogger("fedtailor")


class Unfit(FedTailorError):
    """Data that cannot be used. The message, which may name values, is the site's own; `to_server` is what the server is told."""

    def __init__(self, message: str, to_server: str) -> None:
        super().__init__(message)
        self.to_server = to_server


def site_data(place: SiteFolder, config: Config, sent: Any) -> Federation:
    """Read a site's data by the description that its server sent; None: as the site alone would read it."""
    if sent is None:
        if place.description is not None:
            raise FedTailorError(
                "This site takes part only with the description that its site.toml names, and the server has none. Put that file into the "
                "federation's folder as description.json."
            )
        with _in_private():
            return _read(place, config)
    try:
        description = Description.read(sent)
    except ValueError as problem:
        raise FedTailorError(f"The server's description of the data cannot be used: {problem}.") from None
    if place.description is not None and _essence(place.description) != _essence(description):
        raise FedTailorError(
            "The server's description of the data is not the one that this site's site.toml names. Compare the two files, and use one."
        )
    _refuse_guesses(place, description)
    with _in_private(description):
        config = replace(config, data=config.data.as_described(description))
        own = _read(place, config)
        _check(place, description, own.description)
        if _essence(own.description) == _essence(description):
            return replace(own, description=description)
        learned = own.description
        del own  # its samples are read again
        data = _read(place, config, description)
    _warn(learned, data)
    return data


def _read(place: SiteFolder, config: Config, description: Description | None = None) -> Federation:
    with contextlib.chdir(place.folder):  # paths in site.toml are relative to it
        if place.shared and place.client is not None:
            return part_of(config.federation(description), place.client)
        return config.alone(place.name, description)


def _refuse_guesses(place: SiteFolder, description: Description) -> None:
    """Refuse a description that says more than the site discloses: from whether it fits, a server could find that out by trying."""
    hidden = [aspect for aspect in aspects(description) if aspect not in place.policy.may_describe]
    if hidden and place.description is None and not place.shared:
        raise FedTailorError(
            f"This site does not disclose its {' and '.join(hidden)} (may_describe of its policy), so it takes part only with a "
            'description that its operator has checked. Put that file beside site.toml and name it there: description = "description.json"'
        )


def _check(place: SiteFolder, description: Description, own: Description) -> None:
    """Refuse a description that the site's data does not fit."""
    said, may = "This site's data does not fit the federation's description:", place.policy.may_describe
    if problem := unfit(description, own):
        advice = "Mend the data here, or have the description changed everywhere."
        raise Unfit(f"{said} {problem}. {advice}", f"{said} {unfit(description, own, may)}.")


def _warn(own: Description, data: Federation) -> None:
    """Log what the common description does to this site's rows."""
    (client,), end = data.clients, 0
    for column, learned in zip(data.description.columns, own.columns, strict=True):
        end += column.width
        if column.kind == "number" and learned.indicator and not column.indicator:
            log.warning(
                "Column '%s' has missing values, and the federation's description has no indicator for them: the mean stands in.",
                column.name,
            )
        unseen = int(client.test.x[:, end - 1].sum()) if column.kind == "category" else 0
        if unseen:
            log.warning(
                "Column '%s' has values in %d test rows that the federation's description does not have.",
                column.name,
                unseen,
            )


@contextlib.contextmanager
def _in_private(description: Description | None = None) -> Iterator[None]:
    """Keep from the server what is wrong with the data, which may quote it; a column that the server knows is named."""
    try:
        yield
    except Unfit:
        raise
    except FedTailorError as problem:
        quoted = f"{problem}".split("'")[1::2]
        known = {column.name for column in description.columns} if description is not None else set()
        about = f" (column {named(quoted[:1])})" if known.intersection(quoted[:1]) else ""
        raise Unfit(str(problem), f"This site's data cannot be read{about}; the site's log says why.") from None


def _essence(description: Description) -> Description:
    return replace(description, notes=())


def part_of(federation: Federation, client: int) -> Federation:
    """Return one client's part of a data set that all sites have."""
    if not 0 <= client < len(federation.clients):
        raise FedTailorError(
            f"site.toml says client = {client}, but the clients are 0 to {len(federation.clients) - 1}."
        )
    return replace(federation, clients=[federation.clients[client]])
