"""Sites: how each describes the data that stays with it, and the federation that they form."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from fedtailor.data.client_data import ClientData, RemoteSplit, Split
from fedtailor.data.description import CLASSES, Column, Description, text, whole
from fedtailor.data.federation import Federation
from fedtailor.data.task import CLASSES as CLASS_TASKS
from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError

# Upper bounds of what a site may report: one site's numbers affect everybody's weights and net.
SAMPLES = 10**9
CLIENTS = 10**6


@dataclass(frozen=True)
class SiteDescription:
    """A site's description of its client: the kind and number of its samples, never a sample."""

    client: int | None  # None: a newcomer, which has no number yet
    name: str
    train: int
    test: int
    data: Description

    @classmethod
    def of(cls, federation: Federation, client: int | None) -> SiteDescription:
        """Describe a federation of one client."""
        (own,) = federation.clients
        return cls(client, own.name, len(own.train), len(own.test), replace(federation.description, notes=()))

    @classmethod
    def read(cls, plain: Any) -> SiteDescription:
        """Read an untrusted description; a ValueError says what is wrong with it."""
        expected = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or plain.keys() != expected:
            raise ValueError(
                f"a site's description has the fields {', '.join(sorted(expected))}; it may be of another version"
            )
        return cls(
            client=None if plain["client"] is None else whole(plain["client"], "client", 0, CLIENTS),
            name=text(plain["name"], "name", 1),
            train=whole(plain["train"], "train", 1, SAMPLES),
            test=whole(plain["test"], "test", 0, SAMPLES),
            data=Description.read(plain["data"]),
        )

    def plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "data": self.data.plain()}

    def stand_in(self) -> Federation:
        """Return the federation of this site alone, without its samples."""
        x = torch.empty(0, *self.data.shape, dtype=getattr(torch, self.data.dtype))
        classes = self.data.kind in CLASS_TASKS
        y = torch.empty(0, dtype=torch.int64) if classes else torch.empty(0, self.data.classes)
        train, test = (RemoteSplit(x, y, count=count) for count in (self.train, self.test))
        return Federation([ClientData(self.name, train, test)], self.data, server=Split(x, y))


def common_to(sites: Sequence[SiteDescription]) -> SiteDescription:
    """Merge the descriptions of all sites into one, with as many samples as the largest; a FedTailorError says where they conflict.

    Label names are merged; a site's own labels are mapped to them by name. Pixels and the numbers of tables are scaled by the median of
    the sites' own means and deviations, which no single site can move beyond the others' where there are three or more.
    """
    first = sites[0]
    for site in sites:
        misfit = first.data.misfit(site.data) or site.data.misfit(first.data)
        if misfit:
            raise FedTailorError(
                f"Samples must mean the same everywhere, but site {site.client} ({site.name}) and site {first.client} ({first.name}) "
                f"differ: of one of them, {misfit}."
            )
        if _labelled(site.data) != _labelled(first.data):
            raise FedTailorError(
                f"All sites must have the same task, but that of site {site.client} ({site.name}) is {_told(site.data)} where that of site "
                f"{first.client} ({first.name}) is {_told(first.data)}. A site can say its own in site.toml: data.task."
            )
        if bool(site.data.labels) != bool(first.data.labels):
            raise FedTailorError(
                f"Either all sites name their labels or none does: of site {site.client} ({site.name}) and site {first.client} "
                f"({first.name}) only one has names. Tables and folders name them, arrays do not."
            )
    labels = first.data.labels
    if any(site.data.labels != labels for site in sites):
        labels = tuple(sorted({label for site in sites for label in site.data.labels}))
    if first.data.kind == "binary" and len(labels) > 2:
        raise FedTailorError(f"A binary task has two classes, but the sites name {', '.join(labels[:4])} together.")
    if len(labels) > CLASSES:
        most = max(sites, key=lambda site: len(site.data.labels))
        raise FedTailorError(
            f"The sites name {len(labels):,} labels together, and {CLASSES:,} are allowed. Most are of site {most.client} ({most.name})."
        )
    columns = tuple(_common_column([site.data.columns for site in sites], i) for i in range(len(first.data.columns)))
    data = replace(
        first.data,
        shape=(sum(column.width for column in columns),) if columns else first.data.shape,
        classes=len(labels) or max(site.data.classes for site in sites),
        labels=labels,
        vocabulary=max(site.data.vocabulary for site in sites),
        mean=_medians([site.data.mean for site in sites]),
        std=_medians([site.data.std for site in sites]),
        columns=columns,
    )
    return replace(
        first,
        client=None,
        train=max(site.train for site in sites),
        test=max(site.test for site in sites),
        data=data,
    )


def _common_column(tables: Sequence[tuple[Column, ...]], i: int) -> Column:
    """Return what the sites' columns of one name have in common; the sites may have them in another order."""
    first = tables[0][i]
    alike = [next(column for column in table if column.name == first.name) for table in tables]
    if first.kind == "category" or all(column == first for column in alike):
        return first
    return replace(
        first,
        mean=median(column.mean for column in alike),
        std=median(column.std for column in alike),
        indicator=any(column.indicator for column in alike),
    )


def federation_of(sites: Sequence[SiteDescription]) -> Federation:
    """Build the federation that sites form, as their server sees it, without any sample. Sites are numbered from 0."""
    numbers = [site.client for site in sites]
    for number, times in Counter(numbers).items():
        if times > 1:
            raise FedTailorError(
                f"{times} sites say that they are client {number}. Give each site.toml its own number."
            )
    if sorted(n for n in numbers if n is not None) != list(range(len(sites))):
        raise FedTailorError(
            f"The sites' client numbers are {sorted(map(str, numbers))}, but should be 0 to {len(sites) - 1}."
        )
    ordered = sorted(sites, key=lambda site: site.client or 0)
    parts = [site.stand_in().clients[0] for site in ordered]
    names = _distinct([site.name for site in ordered])
    parts = [replace(part, name=name) for part, name in zip(parts, names, strict=True)]
    return replace(common_to(ordered).stand_in(), clients=parts)


def _labelled(data: Description) -> tuple[Kind, int]:
    """Return what must be equal at all sites: the task and the number of labels (0 for multi-class, where a site may lack classes)."""
    return data.kind, 0 if data.kind == "multiclass" else data.classes


def _told(data: Description) -> str:
    return data.kind if data.kind in CLASS_TASKS else f"{data.kind} with {data.classes} labels"


def _distinct(names: list[str]) -> list[str]:
    """Append the site's number to names that several sites have, or to all names if that is not enough."""
    times = Counter(names)
    numbered = [name if times[name] == 1 else f"{name}-{i}" for i, name in enumerate(names)]
    return numbered if len(set(numbered)) == len(names) else [f"{name}-{i}" for i, name in enumerate(names)]


def _medians(values: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the median per channel; a site's single number counts for all channels."""
    if all(value == values[0] for value in values):
        return values[0]
    channels = max(map(len, values))
    return tuple(median(value[c % len(value)] for value in values) for c in range(channels))
