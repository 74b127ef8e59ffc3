"""Sites: what each discloses of the data that stays with it, the description they agree on, and the federation that they form."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any, Literal, get_args

import torch

from fedtailor.data.client_data import ClientData, RemoteSplit, Split
from fedtailor.data.description import CLASSES, FIRST, Column, Description, named, several, text, whole
from fedtailor.data.federation import Federation
from fedtailor.data.task import CLASSES as CLASS_TASKS
from fedtailor.data.task import Kind
from fedtailor.errors import FedTailorError

# Upper bounds of what a site may report: one site's numbers affect everybody's weights and net.
SAMPLES = 10**9
CLIENTS = 10**6
LOOK = 1000  # differing names that are looked at to say who has them

Aspect = Literal["columns", "categories", "scaling", "labels", "vocabulary"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)


def aspects(data: Description) -> tuple[Aspect, ...]:
    """Return what there is to disclose of a description beside the shape and type of samples that are no rows of a table."""
    kinds = {column.kind for column in data.columns}
    found = {
        "columns": bool(kinds),
        "categories": "category" in kinds,
        "scaling": "number" in kinds,
        "labels": True,
        "vocabulary": bool(data.tokens),
    }
    return tuple(aspect for aspect in ASPECTS if found[aspect])


def disclosed(data: Description, may: Collection[str]) -> Description | None:
    """Return a description with only what may be disclosed of it; None for a table whose columns may not be."""
    if data.columns and "columns" not in may:
        return None
    columns = data.columns
    if "categories" not in may:
        columns = tuple(replace(column, values=()) for column in columns)
    if "scaling" not in may:
        columns = tuple(replace(column, mean=0.0, std=1.0, indicator=False) for column in columns)
    shown = replace(data, notes=(), columns=columns)
    if columns:
        shown = replace(shown, shape=(sum(column.width for column in columns),))
    if "labels" not in may:
        shown = replace(shown, labels=(), label="", classes=1 if data.kind == "multiclass" else data.classes)
    if data.tokens and "vocabulary" not in may:
        shown = replace(shown, tokens=(), vocabulary=FIRST)
    return shown


@dataclass(frozen=True)
class SiteDescription:
    """A site's description of its client: the number of its samples, what may be said of their meaning, never a sample."""

    client: int | None  # None: a newcomer, which has no number yet
    name: str
    train: int
    test: int
    data: Description | None = None  # None: that it fits the description it was sent, and nothing else
    hidden: tuple[str, ...] = ()  # what its policy keeps from `data`

    @classmethod
    def of(cls, federation: Federation, client: int | None, may: Collection[str] | None = ASPECTS) -> SiteDescription:
        """Describe a federation of one client, as far as `may` allows; None: only that it fits."""
        (own,) = federation.clients
        said = cls(client, own.name, len(own.train), len(own.test))
        if may is None:
            return said
        hidden = tuple(aspect for aspect in aspects(federation.description) if aspect not in may)
        return replace(said, data=disclosed(federation.description, may), hidden=hidden)

    @classmethod
    def read(cls, plain: Any) -> SiteDescription:
        """Read an untrusted description; a ValueError says what is wrong with it."""
        expected = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or plain.keys() != expected:
            raise ValueError(
                f"a site's description has the fields {', '.join(sorted(expected))}; it may be of another version"
            )
        hidden = tuple(several(plain, "hidden", range(len(ASPECTS) + 1)))
        if not all(isinstance(aspect, str) and aspect in ASPECTS for aspect in hidden):
            raise ValueError(f"what it keeps hidden is none of {', '.join(ASPECTS)}")
        return cls(
            client=None if plain["client"] is None else whole(plain["client"], "client", 0, CLIENTS),
            name=text(plain["name"], "name", 1),
            train=whole(plain["train"], "train", 1, SAMPLES),
            test=whole(plain["test"], "test", 0, SAMPLES),
            data=None if plain["data"] is None else Description.read(plain["data"]),
            hidden=hidden,
        )

    def plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "data": None if self.data is None else self.data.plain()}

    def __str__(self) -> str:
        return f"site {self.client} ({named([self.name])[1:-1]})"


def unfit(common: Description, own: Description, may: Collection[str] = ASPECTS) -> str:
    """Return how a site's own data, read as the common description says, does not fit it; empty if it does.

    Values of categories and labels are named only if they may be disclosed.
    """
    if common.source != own.source:
        return f"its samples are {own.source} where {common.source} was expected"
    if not common.tokens:  # texts are read with the common vocabulary
        misfit = common.misfit(own, "categories" in may)
        if misfit:
            return misfit
        if own.vocabulary > common.vocabulary:
            return f"it has token ids up to {own.vocabulary - 1}, where {common.vocabulary} of them are known"
    return _label_misfit(common, own, "labels" in may)


def _label_misfit(common: Description, own: Description, names: bool) -> str:
    if _labelled(own) != _labelled(common):
        return f"its task is {_told(own)} where {_told(common)} was expected (data.task in site.toml)"
    if common.label and own.label and own.label != common.label:
        theirs = f"'{own.label}'" if names else "another one"
        return f"its label column is {theirs} where '{common.label}' was expected (data.label in site.toml)"
    if own.labels and not common.labels:
        return "its labels have names, which were not expected"
    known = set(common.labels)
    unknown = [label for label in own.labels if label not in known]
    if unknown and not names:
        return f"it has labels that are not expected: {len(unknown)} of them"
    if unknown:
        return f"it has the label {named(unknown)}, where {named(common.labels)} were expected"
    if own.classes > common.classes:
        return f"it has labels up to {own.classes - 1}, where {common.classes} classes were expected"
    return ""


# -- what sites have in common ---------------------------------------------------------------------------------------------------------


def common_to(sites: Sequence[SiteDescription]) -> Description:
    """Merge the descriptions of all sites into one; a FedTailorError says where they differ in what samples and labels mean.

    Label names are merged; a site's own labels are mapped to them by name. Pixels and the numbers of tables are scaled by the median of
    the sites' own means and deviations, which no single site can move beyond the others' where there are three or more.
    """
    data = []
    for site in sites:
        if site.data is None or site.hidden:
            raise FedTailorError(
                f"The policy of {site} does not let it disclose its {' and '.join(site.hidden) or 'data'} (may_describe), so that the "
                "sites cannot find out by themselves whether their data means the same."
            )
        data.append(site.data)
        _check_alike(sites[0], data[0], site, site.data)
    if data[0].columns:
        _check_columns(sites, data)
    return _merged(data)


def _check_alike(first: SiteDescription, data: Description, site: SiteDescription, own: Description) -> None:
    """Refuse two sites whose samples, tasks or labels are of different kinds."""
    if data.source != own.source:
        raise FedTailorError(f"The samples of {site} are {own.source}, and those of {first} {data.source}.")
    if not data.columns and (data.shape, data.dtype) != (own.shape, own.dtype):
        raise FedTailorError(
            f"The samples of {site} are {own.dtype} of shape {own.shape}, and those of {first} {data.dtype} of shape {data.shape}."
        )
    if data.tokens != own.tokens:
        raise FedTailorError(
            f"The texts of {site} and {first} have different vocabularies: token ids stand for other words."
        )
    if _labelled(own) != _labelled(data):
        raise FedTailorError(
            f"The task of {site} is {_told(own)}, and that of {first} {_told(data)}. A site can say its own in site.toml: data.task."
        )
    if own.label != data.label:
        raise FedTailorError(
            f"The label column of {site} is {named([own.label])}, and that of {first} {named([data.label])}."
        )
    if bool(own.labels) != bool(data.labels):
        raise FedTailorError(
            f"Either all sites name their labels or none does: of {site} and {first} only one has names. Tables and folders name them, "
            "arrays do not."
        )


def _check_columns(sites: Sequence[SiteDescription], data: Sequence[Description]) -> None:
    """Refuse tables that do not have the same columns, of the same kind, with the same values of categories."""
    tables = [{column.name: column for column in own.columns} for own in data]
    uneven = _uneven(sites, tables)
    if uneven:
        raise FedTailorError(f"The sites' tables do not have the same columns: {uneven}.")
    for name in tables[0]:
        alike = [table[name] for table in tables]
        odd = next((i for i, column in enumerate(alike) if column.kind != alike[0].kind), 0)
        if odd:
            raise FedTailorError(
                f"Column {named([name])} is a {alike[0].kind} at {sites[0]} and a {alike[odd].kind} at {sites[odd]}. A site can say which "
                "columns are categories in site.toml: data.categories."
            )
        uneven = _uneven(sites, [column.values for column in alike])
        if uneven:
            raise FedTailorError(f"The sites' columns {named([name])} do not have the same values: {uneven}.")


def _uneven(sites: Sequence[SiteDescription], names: Sequence[Collection[str]], most: int = 3) -> str:
    """Return which of these names only some sites have, and which sites; empty if all have the same."""
    times = Counter(chain.from_iterable(names))
    uneven = [name for name, count in times.items() if count < len(sites)]
    sets = [set(own) for own in names] if uneven else []
    found: dict[str, list[str]] = {}
    for name in uneven[:LOOK]:
        having, lacking = (
            [site for site, own in zip(sites, sets, strict=True) if (name in own) is there] for there in (True, False)
        )
        where = f"only at {_some(having)}" if len(having) <= len(lacking) else f"not at {_some(lacking)}"
        found.setdefault(where, []).append(name)
    shown = [f"{named(own, most)} {where}" for where, own in list(found.items())[:most]]
    return "; ".join([*shown, "…"] if len(found) > most or len(uneven) > LOOK else shown)


def _some(sites: Sequence[SiteDescription], most: int = 2) -> str:
    shown = " and ".join(map(str, sites[:most]))
    return f"{shown} and {len(sites) - most} more" if len(sites) > most else shown


def _merged(data: Sequence[Description]) -> Description:
    """Merge descriptions that mean the same: labels by name, scaling by medians."""
    first = data[0]
    labels = first.labels
    if any(own.labels != labels for own in data):
        labels = tuple(sorted({label for own in data for label in own.labels}))
    if first.kind == "binary" and len(labels) > 2:
        raise FedTailorError(f"A binary task has two classes, but the sites name {named(labels)} together.")
    if len(labels) > CLASSES:
        raise FedTailorError(f"The sites name {len(labels):,} labels together, and {CLASSES:,} are allowed.")
    tables = [{column.name: column for column in own.columns} for own in data]
    columns = tuple(_common_column([table[column.name] for table in tables]) for column in first.columns)
    return replace(
        first,
        shape=(sum(column.width for column in columns),) if columns else first.shape,
        classes=len(labels) or max(own.classes for own in data),
        labels=labels,
        vocabulary=max(own.vocabulary for own in data),
        mean=_medians([own.mean for own in data]),
        std=_medians([own.std for own in data]),
        columns=columns,
    )


def _common_column(alike: Sequence[Column]) -> Column:
    """Return what the sites' columns of one name have in common."""
    first = alike[0]
    if first.kind == "category" or all(column == first for column in alike):
        return first
    return replace(
        first,
        mean=median(column.mean for column in alike),
        std=median(column.std for column in alike),
        indicator=any(column.indicator for column in alike),
    )


def united(sites: Sequence[SiteDescription]) -> tuple[Description, list[str]]:
    """Merge what differing sites disclosed, for people to check: the columns of all sites, every value of a category, every token.

    Also return what is not in it, in words.
    """
    told = [site for site in sites if site.data is not None and not site.hidden]
    data = [site.data for site in told if site.data is not None]
    notes = [f"The data of {site} is not in it: its policy hides it." for site in sites if site not in told]
    if not data:
        raise FedTailorError(
            "No site disclosed all that its data means, so there is nothing to merge. `fedtailor data describe` describes a table."
        )
    tables = [{column.name: column for column in own.columns} for own in data]
    everywhere = [name for name in tables[0] if all(name in table for table in tables)]
    uneven = _uneven(told, tables)
    if uneven and not everywhere:
        raise FedTailorError(f"The sites' tables have no column in common: {uneven}.")
    if uneven:
        notes.append(f"Columns that only some sites have are left out: {uneven}.")
    values = {name: _union(table[name].values for table in tables) for name in everywhere}
    tokens = _union(own.tokens for own in data)
    alike = [
        replace(
            own,
            columns=tuple(replace(table[name], values=values[name]) for name in everywhere),
            tokens=tokens,
            vocabulary=len(tokens) + FIRST if tokens else own.vocabulary,
        )
        for own, table in zip(data, tables, strict=True)
    ]
    return common_to([replace(site, data=own) for site, own in zip(told, alike, strict=True)]), notes


def _union(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


# -- the federation --------------------------------------------------------------------------------------------------------------------


def federation_of(sites: Sequence[SiteDescription], given: Description | None = None) -> Federation:
    """Build the federation that sites form, as their server sees it, without any sample. Sites are numbered from 0.

    The description is the one given, or what the sites' own have in common.
    """
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
    description = given or common_to(ordered)
    x = torch.empty(0, *description.shape, dtype=getattr(torch, description.dtype))
    classes = description.kind in CLASS_TASKS
    y = torch.empty(0, dtype=torch.int64) if classes else torch.empty(0, description.classes)
    clients = [
        ClientData(name, RemoteSplit(x, y, count=site.train), RemoteSplit(x, y, count=site.test))
        for name, site in zip(_distinct([site.name for site in ordered]), ordered, strict=True)
    ]
    return Federation(clients, description, server=Split(x, y))


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
