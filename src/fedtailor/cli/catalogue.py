"""Catalogues made from the registries: an overview of all entries, and one entry in full."""

from __future__ import annotations

import inspect
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from fedtailor.data.partition import partitions
from fedtailor.data.pool import Source, sources
from fedtailor.experiment.config import DataSettings
from fedtailor.methods import Method, methods
from fedtailor.nets import nets
from fedtailor.privacy.reveals import learnt, possible_rules
from fedtailor.privacy.sample_dp import why_not
from fedtailor.registry import Option, Registry, options

REGISTRIES: dict[str, Registry] = {"methods": methods, "datasets": sources, "nets": nets, "partitions": partitions}


def overview(registry: Registry) -> RenderableType:
    """List each registered entry with its meaning; a method also with its paper, family, what travels and what is kept."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for name, cls in sorted(registry.classes.items()):
        table.add_row(Text(name, style="bold"), _summary(cls))
        if issubclass(cls, Method):
            down, up, keeps = _names(cls)
            facts = f"{cls.family} · down: {down} · up: {up} · kept: {keeps}"
            table.add_row("", Text(f"{cls.paper} ({cls.year})\n{facts}" if cls.paper else facts, style="dim"))
    return table


def describe(registry: Registry, name: str) -> RenderableType:
    """Describe one registered entry in full: meaning, paper, options with defaults, what travels."""
    cls = registry.find(name)
    lines = [Text(cls.name, style="bold"), Text(_summary(cls))]
    if getattr(cls, "paper", ""):
        lines.append(Text(f"Paper: {cls.paper}{f' ({cls.year})' if getattr(cls, 'year', 0) else ''}"))
    if issubclass(cls, Method):
        lines.append(Text(_travels(cls)))
        lines += [Text(f"From {name} a curious server learns {what}") for name, what in learnt(cls).items()]
        lines += [Text(f"Rules for it, privacy.{name}=: {rules}") for name, rules in possible_rules(cls).items()]
        lines.append(Text(f"Privacy for samples (privacy.sample_epsilon): {_protection(cls)}"))
    aliases = sorted(a for a, known in registry.aliases.items() if known == cls.name and a != cls.name)
    if aliases:
        lines.append(Text(f"Also called: {', '.join(aliases)}"))
    known = options(cls) + (options(DataSettings) if issubclass(cls, Source) else [])
    return Group(*lines, Text(""), _option_table(registry.kind, known))


def _travels(cls: type[Method]) -> str:
    down, up, keeps = _names(cls)
    when = "after the server's answer" if cls.eval_point == "after_sync" else "after local training"
    return (
        f"Family: {cls.family}\nSent down: {down}\nSent up: {up}\nKept by the client: {keeps}\n"
        f"Tasks: {', '.join(cls.tasks)}\n"
        f"Evaluated: {when}; BatchNorm statistics: {cls.bn_buffers}\nA client that joins after training {cls.new_client}"
    )


def _protection(cls: type[Method]) -> str:
    """Say whether private steps protect all that a method's clients send."""
    reason = why_not(cls)
    if reason:
        return f"no, because {reason}"
    return f"yes; without noise at home: {', '.join(cls.home)}" if cls.home else "yes"


def _names(cls: type[Method]) -> tuple[str, ...]:
    return tuple(", ".join(names) or "nothing" for names in (cls.down, cls.up, cls.keeps))


def _option_table(kind: str, known: list[Option]) -> RenderableType:
    if not known:
        return Text("It has no options.")
    table = Table(Column("option", no_wrap=True), "default", "allowed", "meaning", box=None, pad_edge=False)
    for o in known:
        table.add_row(Text(f"{kind}.{o.name}"), Text(_shown(o.default)), Text(o.type), Text(o.described))
    return table


def _shown(default: Any) -> str:
    return '""' if default == "" else str(default)


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
