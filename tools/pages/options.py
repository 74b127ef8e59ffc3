"""The page of all keys of a config, from where they are declared."""

from __future__ import annotations

from fedtailor.cli.keys import GROUPS, PARTS
from fedtailor.experiment.config import CHOICES, DataSettings, Settings
from fedtailor.methods import methods
from fedtailor.registry import Registry, options
from tools.pages.text import option_table, paragraphs

INTRODUCTION = """# Options

Every key of a run: on the command line as `key=value`, in a config file as TOML, in Python as a keyword of
[`ft.run`](python.md#fedtailor.api.run.run).
`fedtailor options KEY` shows one in the terminal. "Tuned over" is where [tuning](../choosing.md#tuning) looks for a value.
"""
TITLES = {
    "data": "Data sets",
    "partition": "Partitions",
    "net": "Nets",
    "robust": "Robust means",
    "attack": "Attacks",
}


def page() -> str:
    known = {**PARTS, **{o.name: o for o in options(Settings)}}
    placed = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "More": tuple(name for name in known if name not in placed)}
    text = [INTRODUCTION]
    for title, names in groups.items():
        if names:
            text += [f"## {title}\n", option_table("", [known[name] for name in names])]
    text += ["## Any data set\n", option_table("data.", options(DataSettings))]
    for kind, title in TITLES.items():
        text += [f"## {title}\n", *_entries(kind, CHOICES[kind])]
    cards = ", ".join(f"[`{name}`](../methods/{name}.md#options)" for name in sorted(methods.classes))
    return "\n".join([*text, "## Methods\n", f"Options of a method are on its card: {cards}.\n"])


def _entries(kind: str, registry: Registry) -> list[str]:
    """Describe each data set, partition, net, robust mean or attack with its own options."""
    return [
        f"### {name}\n\n{paragraphs(cls)[0]}\n\n{option_table(f'{kind}.', options(cls))}"
        for name, cls in sorted(registry.classes.items())
    ]
