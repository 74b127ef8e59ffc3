"""Sites: how each describes the data that stays with it, and the federation that they form."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from fedtailor.data.client_data import ClientData, RemoteSplit, Split
from fedtailor.data.federation import Federation
from fedtailor.data.task import CLASSES as CLASS_TASKS
from fedtailor.data.task import KINDS, Kind
from fedtailor.errors import FedTailorError

DTYPES = ("uint8", "float32", "float64", "int8", "int16", "int32", "int64")
# Upper bounds of what a site may report: nets grow with these numbers, and one site's numbers affect everybody's net.
CLASSES = 50_000
VOCABULARY = 1_000_000
SAMPLES = 10**9
VALUES = 2**28  # of one sample
CLIENTS = 10**6
LONGEST = 200  # characters of a name
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
)  # characters that a log or a terminal would interpret
MEANS, STDS = (0.0, 1.0), (0.001, 1.0)  # of pixels scaled to [0, 1]


@dataclass(frozen=True)
class SiteDescription:
    """A site's description of its client: the kind and number of its samples, never a sample."""

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
    task: Kind = "multiclass"

    @classmethod
    def of(cls, federation: Federation, client: int | None) -> SiteDescription:
        """Describe a federation of one client."""
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
            task=federation.kind,
        )

    @classmethod
    def read(cls, plain: Any) -> SiteDescription:
        """Read an untrusted description; a ValueError says what is wrong with it."""
        expected = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or plain.keys() != expected:
            raise ValueError(
                f"a description has the fields {', '.join(sorted(expected))}; it may be of another version"
            )
        if plain["dtype"] not in DTYPES:
            raise ValueError(f"its samples are of no type in {', '.join(DTYPES)}")
        if plain["task"] not in KINDS:
            raise ValueError(f"its task is none of {', '.join(KINDS)}")
        shape = _several(plain, "shape", range(1, 9))
        classes = _whole(plain["classes"], "classes", 1, CLASSES)
        site = cls(
            client=None if plain["client"] is None else _whole(plain["client"], "client", 0, CLIENTS),
            name=_text(plain["name"], "name", 1),
            shape=tuple(_whole(n, "shape", 1, VALUES) for n in shape),
            dtype=plain["dtype"],
            classes=classes,
            labels=tuple(_text(label, "label", 0) for label in _several(plain, "labels", (0, classes))),
            vocabulary=_whole(plain["vocabulary"], "vocabulary", 0, VOCABULARY),
            mean=tuple(_real(m, "mean", *MEANS) for m in _several(plain, "mean", (1, shape[0]))),
            std=tuple(_real(s, "std", *STDS) for s in _several(plain, "std", (1, shape[0]))),
            train=_whole(plain["train"], "train", 1, SAMPLES),
            test=_whole(plain["test"], "test", 0, SAMPLES),
            task=plain["task"],
        )
        if math.prod(site.shape) > VALUES:
            raise ValueError(f"a sample of shape {site.shape} has more than {VALUES:,} values")
        if site.task == "binary" and site.classes != 2:
            raise ValueError("its task is binary, but it does not have two classes")
        if len(set(site.labels)) < len(site.labels):
            raise ValueError("two of its labels have the same name")
        return site

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def stand_in(self) -> Federation:
        """Return the federation of this site alone, without its samples."""
        x = torch.empty(0, *self.shape, dtype=getattr(torch, self.dtype))
        y = torch.empty(0, dtype=torch.int64) if self.task in CLASS_TASKS else torch.empty(0, self.classes)
        train, test = (RemoteSplit(x, y, count=count) for count in (self.train, self.test))
        client = ClientData(self.name, train, test)
        return Federation(
            [client],
            self.shape,
            self.classes,
            self.mean,
            self.std,
            self.labels,
            self.vocabulary,
            server=Split(x, y),
            kind=self.task,
        )


def common_to(sites: Sequence[SiteDescription]) -> SiteDescription:
    """Merge the descriptions of all sites into one, with as many samples as the largest; a FedTailorError says where they conflict.

    Label names are merged; a site's own labels are mapped to them by name. Pixels are scaled by the median of the sites' own
    means and deviations, which no single site can move beyond the others' where there are three or more.
    """
    first = sites[0]
    for site in sites:
        if (site.shape, site.dtype) != (first.shape, first.dtype):
            raise FedTailorError(
                f"Samples must be alike everywhere, but those of site {site.client} ({site.name}) are {site.dtype} of shape {site.shape} "
                f"where those of site {first.client} ({first.name}) are {first.dtype} of shape {first.shape}."
            )
        if _labelled(site) != _labelled(first):
            raise FedTailorError(
                f"All sites must have the same task, but that of site {site.client} ({site.name}) is {_told(site)} where that of site "
                f"{first.client} ({first.name}) is {_told(first)}. A site can say its own in site.toml: data.task."
            )
        if bool(site.labels) != bool(first.labels):
            raise FedTailorError(
                f"Either all sites name their labels or none does: of site {site.client} ({site.name}) and site {first.client} "
                f"({first.name}) only one has names. Tables and folders name them, arrays do not."
            )
    labels = first.labels
    if any(site.labels != labels for site in sites):
        labels = tuple(sorted({label for site in sites for label in site.labels}))
    if first.task == "binary" and len(labels) > 2:
        raise FedTailorError(f"A binary task has two classes, but the sites name {', '.join(labels[:4])} together.")
    if len(labels) > CLASSES:
        most = max(sites, key=lambda site: len(site.labels))
        raise FedTailorError(
            f"The sites name {len(labels):,} labels together, and {CLASSES:,} are allowed. Most are of site {most.client} ({most.name})."
        )
    return replace(
        first,
        client=None,
        classes=len(labels) or max(site.classes for site in sites),
        labels=labels,
        vocabulary=max(site.vocabulary for site in sites),
        mean=_medians([site.mean for site in sites]),
        std=_medians([site.std for site in sites]),
        train=max(site.train for site in sites),
        test=max(site.test for site in sites),
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


def _labelled(site: SiteDescription) -> tuple[Kind, int]:
    """Return what must be equal at all sites: the task and the number of labels (0 for multi-class, where a site may lack classes)."""
    return site.task, 0 if site.task == "multiclass" else site.classes


def _told(site: SiteDescription) -> str:
    return site.task if site.task in CLASS_TASKS else f"{site.task} with {site.classes} labels"


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


def _whole(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"its {what} is not a whole number from {least:,} to {most:,}")
    return value


def _real(value: Any, what: str, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:  # also refuses NaN
        raise ValueError(f"its {what} is not a number from {least:g} to {most:g}")
    return float(value)


def _text(value: Any, what: str, least: int) -> str:
    if not isinstance(value, str) or not least <= len(value) <= LONGEST or CONTROLS.search(value):
        raise ValueError(f"its {what} is not a text of {least} to {LONGEST} characters without control characters")
    return value


def _several(plain: dict[str, Any], what: str, allowed: Sequence[int]) -> Sequence[Any]:
    values = plain[what]
    if not isinstance(values, list | tuple) or len(values) not in allowed:
        counts = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else " or ".join(map(str, allowed))
        raise ValueError(f"its {what} is not a list of {counts} entries")
    return values
