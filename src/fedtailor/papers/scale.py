"""Scale a preset down to what a machine can do, and describe what was scaled down."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.config import Config
from fedtailor.methods.fedsimsup import FedSimSup
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.presets import Overrides, Preset, PresetCell, settled, where_known

NAMED = {
    "full": "",
    "small": "fraction=0.1,rounds=20,seeds=1",
    "smoke": "fraction=0.02,rounds=2,seeds=1",
}
SMALLER = ("rounds", "epochs", "clients")  # never more than the paper's


@dataclass(frozen=True)
class Scale:
    """A requested scale: seeds, rows (methods), columns, and overrides of every run.

    Rounds, epochs and clients in `overrides` never exceed the paper's; those in `over` apply as they are.
    """

    seeds: int | None = None
    methods: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    overrides: Overrides = ()
    over: Overrides = ()

    @classmethod
    def parse(cls, text: str, preset: Preset) -> Scale:
        """Parse fraction=0.05,rounds=20,seeds=2,methods=local+fedavg,columns=1+2, or a name such as smoke, or both.

        Dotted keys are options.
        """
        scale = cls()
        for item in _items(text, preset):
            key, sign, value = item.partition("=")
            if not sign:
                known = ", ".join(NAMED)
                raise FedTailorError(
                    f"--scale '{item}' is neither a name ({known}) nor key=value.{nearest(item, NAMED)}"
                )
            if key == "seeds":
                scale = replace(scale, seeds=_count(item, value))
            elif key == "methods":
                scale = replace(scale, methods=tuple(_row(name, preset) for name in value.split("+")))
            elif key == "columns":
                scale = replace(scale, columns=tuple(_place(item, n, preset) for n in value.split("+")))
            else:
                override = f"data.fraction={value}" if key == "fraction" else item
                scale = replace(scale, overrides=(*scale.overrides, override))
        return scale

    def shrunk(self, preset: Preset) -> Preset:
        """Return the preset with fewer cells and seeds, and the overrides applied to its runs."""
        cells = tuple(
            replace(cell, parts=tuple(part._replace(overrides=self.applied_to(part.overrides)) for part in cell.parts))
            for cell in self._kept(preset)
        )
        seeds = min(self.seeds or preset.seeds, preset.seeds)
        return replace(preset, cells=tuple(map(self._on_other_data, cells)), seeds=seeds)

    def _kept(self, preset: Preset) -> list[PresetCell]:
        columns = [preset.columns[i - 1] for i in self.columns] or preset.columns
        return [c for c in preset.cells if c.row in (self.methods or preset.rows) and c.column in columns]

    def _on_other_data(self, cell: PresetCell) -> PresetCell:
        """Rename the column and drop the published number if data=… is overridden, since they would not be comparable."""
        other = [_value(override) for override in (*self.overrides, *self.over) if _key(override) == "data"]
        return replace(cell, column=f"{other[-1]} for {cell.column}", number=None) if other else cell

    def applied_to(self, overrides: Overrides) -> Overrides:
        """Apply this scale to the overrides of a run."""
        kept = [w for w in self.overrides if _key(w) not in SMALLER or _count(w, _value(w)) < _own(overrides, _key(w))]
        rounds = next((int(_value(w)) for w in reversed(kept) if _key(w) == "rounds"), None)
        turn = () if rounds is None else _same_turn(overrides, rounds)
        return settled([*overrides, *where_known([*turn, *kept, *self.over], overrides)])

    def description(self, preset: Preset) -> str:
        """Describe how the scaled-down preset differs from the paper; empty if it does not."""
        small = self.shrunk(preset)
        runs = [cell.parts for cell in self._kept(preset) if MEASURES[cell.measure].needs_run]
        before = dict.fromkeys(part.overrides for parts in runs for part in parts)
        after = {own: self.applied_to(own) for own in before}
        changed = dict.fromkeys(w for own, new in after.items() for w in _last(new) if w not in _last(own))
        changes = [_readable(override) for override in changed if _key(override) not in SMALLER]
        for key in SMALLER:
            for number in dict.fromkeys(_value(w) for w in changed if _key(w) == key):
                full = {_own(own, key) for own, new in after.items() if f"{key}={number}" in new}
                changes.append(f"{_counted(number, key)} instead of {' or '.join(map(str, sorted(full)))}")
        if small.seeds < preset.seeds and before:
            changes.append(f"{_counted(str(small.seeds), 'seeds')} instead of {preset.seeds}")
        for what, some, all_ in (("rows", small.rows, preset.rows), ("columns", small.columns, preset.columns)):
            if len(some) < len(all_):
                changes.append(f"{len(some)} of {len(all_)} {what}")
        return "; ".join(changes)


def _same_turn(overrides: Overrides, rounds: int) -> Overrides:
    """Scale FedSimSup's C so that learning from others weakens after the same share of the rounds, C·T^γ / T, as in the paper."""
    method = Config.load(words=overrides).method if "method=fedsimsup" in map(str.lower, overrides) else None
    if not isinstance(method, FedSimSup):
        return ()
    share = rounds / _own(overrides, "rounds")
    return (f"method.C={method.C * share ** (1 - method.gamma):.6g}",)


def _items(text: str, preset: Preset) -> list[str]:
    """Split the text into key=value items, with names such as smoke replaced by what they stand for."""
    items: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        items += NAMED[item].split(",") if item in NAMED else [item]
        items += preset.smoke.split(",") if item == "smoke" else []
    return [item for item in items if item]


def _row(name: str, preset: Preset) -> str:
    plain = {_plain(row): row for row in preset.rows}
    if _plain(name) not in plain:
        raise FedTailorError(
            f"'{preset.name}' has no row '{name}'.{nearest(_plain(name), plain)} Its rows: {', '.join(preset.rows)}."
        )
    return plain[_plain(name)]


def _place(item: str, text: str, preset: Preset) -> int:
    number, count = _count(item, text), len(preset.columns)
    if number > count:
        listed = ", ".join(f"{i} {name}" for i, name in enumerate(preset.columns, 1))
        raise FedTailorError(f"--scale {item}: '{preset.name}' has {count} columns: {listed}.")
    return number


def _count(item: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise FedTailorError(f"--scale {item}: expected a whole number from 1 on, not '{text}'.")
    return int(text)


def _readable(override: str) -> str:
    return f"{100 * float(_value(override)):g} % of the samples" if _key(override) == "data.fraction" else override


def _counted(number: str, things: str) -> str:
    return f"{number} {things.removesuffix('s') if number == '1' else things}"


def _own(overrides: Overrides, key: str) -> int:
    """Return the last value of a key that every protocol sets."""
    return next(int(_value(override)) for override in reversed(overrides) if _key(override) == key)


def _last(overrides: Overrides) -> list[str]:
    """Return the override of each key that takes effect, the last one."""
    return list({_key(override): override for override in overrides}.values())


def _key(override: str) -> str:
    return override.partition("=")[0]


def _value(override: str) -> str:
    return override.partition("=")[2]


def _plain(name: str) -> str:
    """Keep letters, digits and dots only, so that fedavg-ft means FedAvg+FT and clean-one-way 'clean, one way'."""
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")
