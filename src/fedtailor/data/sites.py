"""Sites: what each tells about the data that stays with it, and the federation that they make together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic
import torch

from fedtailor.data.federation import Federation
from fedtailor.data.split import ClientData, Elsewhere, Split
from fedtailor.errors import FedTailorError

DTYPES = ("uint8", "float32", "float64", "int16", "int32", "int64")
LARGEST = 2**40  # no count or dimension is larger


@dataclass(frozen=True)
class Site:
    """One site's client as it describes itself: the kind and number of its samples, never a sample."""

    client: int | None  # None: a newcomer, which has no number yet
    name: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    labels: tuple[str, ...]
    vocabulary: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: int
    test: int

    @classmethod
    def of(cls, federation: Federation, client: int | None) -> Site:
        """The description of a federation of one client."""
        (own,) = federation.clients
        return cls(
            client=client,
            name=own.name,
            shape=tuple(federation.shape),
            dtype=str(own.train.x.dtype).removeprefix("torch."),
            classes=federation.classes,
            labels=federation.labels,
            vocabulary=federation.vocabulary,
            mean=tuple(federation.mean),
            std=tuple(federation.std),
            train=len(own.train),
            test=len(own.test),
        )

    @classmethod
    def read(cls, plain: Any) -> Site:
        """From another party's words; a ValueError says what is wrong with them."""
        site = pydantic.TypeAdapter(cls).validate_python(plain)
        numbers = (site.classes, site.vocabulary, site.train, site.test, *site.shape, site.client or 0)
        if site.dtype not in DTYPES or not all(0 <= n <= LARGEST for n in numbers) or len(site.name) > 200:
            raise ValueError("a site of an impossible kind")
        return site

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def stand_in(self) -> Federation:
        """The federation of this site alone, without its samples."""
        x = torch.empty(0, *self.shape, dtype=getattr(torch, self.dtype))
        y = torch.empty(0, dtype=torch.int64)
        train, test = (Elsewhere(x, y, count=count) for count in (self.train, self.test))
        client = ClientData(self.name, train, test)
        return Federation(
            [client], self.shape, self.classes, self.mean, self.std, self.labels, self.vocabulary, Split(x, y)
        )


def common_to(sites: Sequence[Site]) -> Site:
    """What all sites have in common, as a site with all their samples; a FedTailorError says where they do not fit together.

    Label names are joined; a site's own labels find their place among them by name. Pixels are scaled by the mean of the sites' own
    means and deviations, weighted by training samples.
    """
    first = sites[0]
    for site in sites:
        if (site.shape, site.dtype) != (first.shape, first.dtype):
            raise FedTailorError(
                f"Samples must be alike everywhere, but those of site {site.client} ({site.name}) are {site.dtype} of shape {site.shape} "
                f"where those of site {first.client} ({first.name}) are {first.dtype} of shape {first.shape}."
            )
        if bool(site.labels) != bool(first.labels):
            raise FedTailorError(
                f"Either all sites name their labels or none does: of site {site.client} ({site.name}) and site {first.client} "
                f"({first.name}) only one has names. Tables and folders name them, arrays do not."
            )
    labels = first.labels
    if any(site.labels != labels for site in sites):
        labels = tuple(sorted({label for site in sites for label in site.labels}))
    return replace(
        first,
        client=None,
        classes=len(labels) or max(site.classes for site in sites),
        labels=labels,
        vocabulary=max(site.vocabulary for site in sites),
        mean=_weighted([site.mean for site in sites], [site.train for site in sites]),
        std=_weighted([site.std for site in sites], [site.train for site in sites]),
        train=sum(site.train for site in sites),
        test=sum(site.test for site in sites),
    )


def federation_of(sites: Sequence[Site]) -> Federation:
    """The federation that sites make, as their server sees it: without a single sample. Sites are numbered from 0."""
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
    names = Counter(site.name for site in ordered)
    parts = [site.stand_in().clients[0] for site in ordered]
    parts = [replace(p, name=p.name if names[p.name] == 1 else f"{p.name}-{i}") for i, p in enumerate(parts)]
    return replace(common_to(ordered).stand_in(), clients=parts)


def _weighted(values: Sequence[tuple[float, ...]], weights: Sequence[int]) -> tuple[float, ...]:
    if all(value == values[0] for value in values):
        return values[0]
    total = sum(weights)
    return tuple(
        sum(v * w for v, w in zip(column, weights, strict=True)) / total for column in zip(*values, strict=True)
    )
