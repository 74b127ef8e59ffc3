"""The keys of a config, described from where they are declared: all that every run has, and one in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.config import CHOICES, DataSettings, Settings
from fedtailor.learning.metrics import METRICS
from fedtailor.privacy.rules import OPTIONS
from fedtailor.privacy.sample_dp import SampleOptions
from fedtailor.registry import Option, options

LISTED_BY = {"method": "methods", "data": "datasets", "partition": "partitions", "net": "nets"}  # commands
PLURAL = {**LISTED_BY, "robust": "robust means", "attack": "attacks"}

PARTS = {
    "method": Option("method", "a name or a .py file", "fedrep", "the algorithm"),
    "data": Option("data", "a name", "digits", "the data set; its options say where your own data is"),
    "partition": Option("partition", "a name", "", "how samples are dealt to clients (none: one that fits the data)"),
    "net": Option("net", "a name or a .py file", "", "the model (none: one that fits the samples)"),
    "robust": Option("robust", "a name", "", "what takes the place of the server's means, against hostile clients"),
    "attack": Option("attack", "a name", "", "what a share of the clients do to harm the others; in a simulation only"),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "What is run": tuple(LISTED_BY),
    "Hostile clients": ("robust", "attack"),
    "Clients and rounds": ("clients", "rounds", "join", "dropout", "seed", "partition_seed"),
    "Local training": (
        *("epochs", "steps", "batch", "lr", "lr_schedule", "warmup", "lr_decay", "lr_step"),
        *("optimizer", "momentum", "weight_decay", "clip_norm", "optimizer_state"),
        *("augment", "class_weights", "bn_buffers"),
    ),
    "Server": ("server_optimizer", "server_lr", "server_momentum", "server_beta2", "server_tau", "guard"),
    "Evaluation": ("eval_every", "eval_point", "eval_closing", "metrics", "select_by", "validation", "patience"),
    "Machine": ("device", "dtype", "threads", "fast", "engine", "workers", "ray_address"),
    "Run folder": ("checkpoint_every", "save_models"),
}


def every_key() -> RenderableType:
    """List the keys that every run has, in groups."""
    known = {**PARTS, **{o.name: o for o in options(Settings)}}
    placed = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "More": tuple(name for name in known if name not in placed)}
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for title, names in groups.items():
        _add(table, title, {name: known[name] for name in names if name in known})
    _add(table, "Privacy (and a rule for each name, such as privacy.body=dp)", _privacy_keys())
    _add(table, "Any data set", {f"data.{o.name}": o for o in options(DataSettings)})
    how = "`fedtailor options KEY` shows one key, `fedtailor methods NAME` (datasets, partitions, nets) the dotted keys of one."
    return Group(table, Text(how))


def describe_key(key: str) -> RenderableType:
    """Describe one key in full; a dotted one with the methods, data sets, partitions or nets that have it."""
    known = _all_keys()
    if key not in known:
        inner = [name for name in known if name.endswith(f".{key}")]  # `hidden` is net.hidden
        near = f" Did you mean '{inner[0]}'?" if inner else nearest(key, known)
        raise FedTailorError(f"There is no key '{key}'.{near} `fedtailor options` lists the keys that every run has.")
    kind = key.partition(".")[0]
    lines = [Text(key, style="bold")]
    for described, owners in known[key]:
        lines += [Text(f"\nIn {PLURAL[kind]}: {', '.join(owners)}")] if owners else []
        lines.append(Text(f"{described.described}\nAllowed: {described.type}\nDefault: {_shown(described.default)}"))
    if key in LISTED_BY:
        names = ", ".join(sorted(CHOICES[key].classes))
        lines.append(Text(f"Known: {names}\n`fedtailor {LISTED_BY[key]}` says what each is."))
    elif key in CHOICES:
        lines += [_entry(key, name, cls) for name, cls in sorted(CHOICES[key].classes.items())]
    if key in ("metrics", "select_by"):
        lines.append(Text(f"Known: {', '.join(METRICS)}"))
    return Group(*lines)


def _all_keys() -> dict[str, list[tuple[Option, list[str]]]]:
    """Return each key with its descriptions and, if it is dotted, who has it; entries that agree share a description."""
    keys = {o.name: [(o, list[str]())] for o in (*PARTS.values(), *options(Settings))}
    keys |= {f"data.{o.name}": [(o, [])] for o in options(DataSettings)}
    keys |= {key: [(o, [])] for key, o in _privacy_keys().items()}
    for kind, registry in CHOICES.items():
        for name, cls in sorted(registry.classes.items()):
            for o in options(cls):
                described = keys.setdefault(f"{kind}.{o.name}", [])
                owners = next((names for other, names in described if other == o), None)
                if owners is None:
                    described.append((o, [name]))
                else:
                    owners.append(name)
    return keys


def _entry(kind: str, name: str, cls: type) -> Text:
    """Say what an entry without a command of its own is, and what its options are."""
    own = "".join(f"\n  {kind}.{o.name} ({_shown(o.default)}): {o.meaning}" for o in options(cls))
    about = " ".join((cls.__doc__ or "").split())
    return Text.assemble((f"\n{name}", "bold"), f": {about}{own}")


def _privacy_keys() -> dict[str, Option]:
    return {f"privacy.{o.name}": o for kind in (*OPTIONS.values(), SampleOptions) for o in options(kind)}


def _add(table: Table, title: str, known: Mapping[str, Option]) -> None:
    if not known:
        return
    table.add_row(Text(title, style="bold underline"), "")
    for key, o in known.items():
        table.add_row(Text(key, style="bold"), Text(o.meaning))
        table.add_row("", Text(f"default {_shown(o.default)} · {o.type}", style="dim"))
    table.add_row("", "")


def _shown(default: Any) -> str:
    """Return a default as it is typed."""
    if default is None or default in ("", ()):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
