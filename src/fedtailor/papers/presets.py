"""Every table and figure of the five papers, and of a benchmark, as a preset: its cells, and the overrides that run each of them.

The facts are in one TOML file per paper. Columns and rows of a table are those of the published numbers; a setting such as
"K=20;dir0.1" is a list of tokens, and the file says which overrides a token stands for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

from fedtailor.data.pool import data_root
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.config import CHOICES
from fedtailor.methods import methods
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.published import PublishedNumber, overrides_of, published

PAPERS = ("pgfedsplit", "heart", "fedsimsup", "fedafk", "fedah", "flamby")
# The partition stays the same across seeds; each run is its own process, so it needs no parallel engine.
ALWAYS = ("partition_seed=1", "save_models=false", "engine=inline")
AVERAGE = "Average"  # a column that is the mean of the columns with its setting

Overrides = tuple[str, ...]  # key=value
Tokens = tuple[str, ...]  # of a setting


class Term(NamedTuple):
    """A run that a cell uses, without its seed, and the weight of its number in the cell."""

    weight: float
    name: str
    overrides: Overrides


@dataclass(frozen=True)
class PresetRow:
    """A row of a table: a method, or a variant of one."""

    name: str
    overrides: Overrides
    method: str = ""  # its name in the published numbers
    tokens: Tokens = ()
    group: str = ""  # only the clients with this kind of supervisor count


@dataclass(frozen=True)
class PresetColumn:
    """A column of a table: a data set in one setting, and what is measured there."""

    name: str
    dataset: str
    tokens: Tokens
    measure: str
    table: str = ""
    metric: str = ""
    client: str = ""  # only the client of this name counts


@dataclass(frozen=True)
class PresetCell:
    """One number of a table: a weighted sum over runs; most cells have just one run."""

    row: str
    column: str
    measure: str
    parts: tuple[Term, ...]
    number: PublishedNumber | None = None  # the published number
    group: str = ""  # which clients count, where not all do: see MeasuredRun.members

    @property
    def published(self) -> float | None:
        return as_number(self.number.value) if self.number else None

    @property
    def published_std(self) -> float | None:
        return as_number(self.number.std) if self.number else None


@dataclass(frozen=True)
class Preset:
    """One table or figure."""

    name: str
    title: str
    cells: tuple[PresetCell, ...]
    seeds: int
    choices: tuple[str, ...]
    first_seed: int = 0
    figures: tuple[str, ...] = ()
    hints: dict[str, str] = field(default_factory=dict)
    smoke: str = ""

    @property
    def seed_numbers(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


@cache
def presets() -> dict[str, Preset]:
    return {preset.name: preset for name in PAPERS for preset in Paper(name).presets}


def find(name: str) -> Preset:
    known = presets()
    if name.lower() not in known:
        raise FedTailorError(
            f"There is no table or figure '{name}'.{nearest(name, known)} `fedtailor reproduce --list` lists all {len(known)}."
        )
    return known[name.lower()]


class Paper:
    """One paper's TOML file, and the presets it defines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: dict[str, Any] = tomllib.loads(files("fedtailor.papers").joinpath(f"{name}.toml").read_text())
        self.paper = str(self.facts["paper"])

    @property
    def presets(self) -> list[Preset]:
        return [self.preset(key) for key in self.facts["preset"]]

    def preset(self, key: str) -> Preset:
        facts = self.facts["preset"][key]
        return Preset(
            name=f"{self.name}/{key}",
            title=facts["title"],
            cells=tuple(self.gains(facts) if "gains" in facts else self.grid(facts)),
            seeds=self.facts["seeds"],
            choices=(*facts.get("choices", ()), *self.facts["choices"]),
            first_seed=self.facts.get("first_seed", 0),
            figures=tuple(facts.get("figures", ())),
            hints=self.facts.get("hints", {}),
            smoke=self.facts.get("smoke", ""),
        )

    # -- the cells of a preset --------------------------------------------------------------------------------------------------

    def grid(self, facts: dict[str, Any]) -> Iterable[PresetCell]:
        """Yield the cells of rows × columns, except those that the paper's table lacks."""
        columns, rows = self.columns(facts), self.rows(facts)
        for column in columns:
            for row in rows:
                number = self.number(column, row)
                if number is None and column.table and row.method:
                    continue
                sources = [c for c in columns if c.dataset != AVERAGE and c.tokens == column.tokens]
                sources = sources if column.dataset == AVERAGE else [column]
                parts = tuple(self.part(1 / len(sources), facts, c, row) for c in sources)
                yield PresetCell(row.name, column.name, column.measure, parts, number, row.group or column.client)

    def gains(self, facts: dict[str, Any]) -> Iterable[PresetCell]:
        """Yield cells with the mean advantage of one row over others, over several settings."""
        number = facts["published"]
        for dataset in facts["columns"]:
            runs = [self.column(dataset, (token,), self.facts["measure"]) for token in facts["over"]]
            for kind, others in facts["gains"].items():
                tokens = (number["setting"], kind)
                metric = number["metric"]
                column = PresetColumn(dataset, dataset, tokens, self.measure(metric), number["table"], metric)
                best = self.row(facts["of"])
                weight = 1 / len(runs)
                parts = [self.part(weight, facts, c, best) for c in runs]
                parts += [self.part(-weight / len(others), facts, c, self.row(m)) for c in runs for m in others]
                yield PresetCell(kind, column.name, column.measure, tuple(parts), self.number(column, best))

    def columns(self, facts: dict[str, Any]) -> list[PresetColumn]:
        if "tables" not in facts:
            return [self.column(*_parsed(text), self.facts["measure"]) for text in facts["columns"]]
        numbers = [n for n in self.numbers if n.table in facts["tables"]]
        several = len({n.metric for n in numbers}) > 1
        found = {}
        for n in numbers:
            tokens, _ = self.divided(n, facts)
            column = self.column(n.dataset, tokens, self.measure(n.metric), n.table, n.metric, several)
            found[column.name] = column
        return list(found.values())

    def rows(self, facts: dict[str, Any]) -> list[PresetRow]:
        if "rows_of" in facts:
            return self.rows(self.facts["preset"][facts["rows_of"]])
        if "every" in facts:
            able = sorted(name for name, cls in methods.classes.items() if facts["every"] in cls.tasks)
            return [PresetRow(name, (f"method={name}",)) for name in able if name not in facts.get("without", ())]
        given = [
            PresetRow(r["name"], tuple(r["overrides"].split())) for r in facts.get("rows", []) + facts.get("extra", [])
        ]
        numbers = [n for n in self.numbers if n.table in facts.get("tables", ())]
        listed = dict.fromkeys((n.method, self.divided(n, facts)[1]) for n in numbers)
        return [self.row(method, tokens) for method, tokens in listed] + given

    def divided(self, number: PublishedNumber, facts: dict[str, Any]) -> tuple[Tokens, Tokens]:
        """Split the tokens of a setting into those of its column and those that define a separate row."""
        by = facts.get("rows_by")
        tokens = number.setting.split(";")
        mine = tuple(t for t in tokens if by and t.startswith(by))
        return tuple(t for t in tokens if t not in mine), mine

    # -- what names mean --------------------------------------------------------------------------------------------------------

    def column(
        self, dataset: str, tokens: Tokens, measure: str, table: str = "", metric: str = "", several: bool = False
    ) -> PresetColumn:
        name = ", ".join(filter(None, ("" if dataset == "-" else dataset, self.setting(tokens))))
        return PresetColumn(
            name=name + (f": {MEASURES[measure].short}" if several else ""),
            dataset=dataset,
            tokens=tokens,
            measure=measure,
            table=table,
            metric=metric,
            client=dataset if dataset in self.facts.get("clients", ()) else "",
        )

    def setting(self, tokens: Tokens) -> str:
        return ", ".join(label for token in tokens if (label := self.token(token)[0]))

    def row(self, method: str, tokens: Tokens = ()) -> PresetRow:
        name = ", ".join(self.token(token)[0] for token in tokens) or method
        own = self.facts.get("options", {}).get(method, "").split()
        overrides = (*overrides_of(self.paper, method), *own, *(w for t in tokens for w in self.token(t)[1]))
        return PresetRow(name, overrides, method, tokens, self.facts.get("groups", {}).get(method, ""))

    def token(self, token: str) -> tuple[str, Overrides]:
        """Return a token's label in column names and the overrides it stands for; "dir*" matches dir0.1 and dir1."""
        known: dict[str, list[str]] = self.facts["tokens"]
        stem = next((k for k in known if k.endswith("*") and token.startswith(k[:-1])), "")
        label, overrides = known[token] if token in known else known[stem]
        value = token.removeprefix(stem[:-1])
        return label.replace("{}", value), tuple(overrides.replace("{}", value).split())

    def part(self, weight: float, facts: dict[str, Any], column: PresetColumn, row: PresetRow) -> Term:
        """Return one run with all its overrides except the seed."""
        dataset = self.facts["datasets"][column.dataset].split()
        tokens = (override for token in column.tokens for override in self.token(token)[1])
        common = [*ALWAYS, *self.facts["protocol"].split(), *dataset, *tokens]
        own = [*facts.get("overrides", "").split(), *row.overrides]
        last = self.facts.get("last", "").replace("{data}", str(data_root())).split()
        # Clients of one run share it, and its name.
        setting = self.setting(column.tokens) if column.client else column.name.partition(":")[0]
        name = ", ".join(filter(None, (setting, row.name)))
        return Term(weight, name, settled([*where_known(common, own), *own, *last]))

    def measure(self, metric: str) -> str:
        return str(self.facts["metrics"][metric])

    def number(self, column: PresetColumn, row: PresetRow) -> PublishedNumber | None:
        key = (column.table, column.dataset, frozenset((*column.tokens, *row.tokens)), row.method, column.metric)
        return self.by_place.get(key)

    @cached_property
    def by_place(self) -> dict[tuple[object, ...], PublishedNumber]:
        return {(n.table, n.dataset, frozenset(n.setting.split(";")), n.method, n.metric): n for n in self.numbers}

    @cached_property
    def numbers(self) -> list[PublishedNumber]:
        return [n for n in published() if n.paper == self.paper]


def where_known(overrides: Iterable[str], run: Iterable[str]) -> list[str]:
    """Drop options that the run's method does not have, since a protocol is shared by all methods."""
    name = next(w for w in reversed(list(run)) if w.startswith("method=")).removeprefix("method=")
    known = {known.name for known in fields(methods.find(name))}
    return [w for w in overrides if not w.startswith("method.") or w.partition("=")[0].removeprefix("method.") in known]


def settled(overrides: Iterable[str]) -> Overrides:
    """Drop overrides that later ones undo: keep the last of each plain key, and the last of equal overrides."""
    given = list(overrides)
    plain = {key: i for i, override in enumerate(given) if (key := override.partition("=")[0]) and not _chooses(key)}
    latest = {override: i for i, override in enumerate(given)}
    return tuple(w for i, w in enumerate(given) if i == plain.get(w.partition("=")[0], latest[w]))


def as_number(text: str) -> float | None:
    """Parse a published number; None if there is none, or if it is a formula such as 2aS."""
    try:
        return float(text)
    except ValueError:
        return None


def _chooses(key: str) -> bool:
    return key.partition(".")[0] in CHOICES  # naming another net drops the options set before, so order matters


def _parsed(text: str) -> tuple[str, Tokens]:
    dataset, *tokens = text.split(";")
    return dataset, tuple(tokens)
