"""Everything a report is about, read from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedtailor.analysis.groups import by_federation, by_method
from fedtailor.analysis.results import Result, find_runs, read_run
from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.headline import Headline
from fedtailor.papers.reproduction import FILE, Reproduction
from fedtailor.report.tuning import Trials, read_tuning
from fedtailor.tuning.tune import TUNING


@dataclass(frozen=True)
class Material:
    """The runs, the reproductions they belong to (by folder), folders that could not be read, and the requested options."""

    results: list[Result]
    reproductions: dict[Path, Reproduction]
    unreadable: list[str] = field(default_factory=list)
    baseline: str = ""
    metric: Headline = field(default_factory=Headline)
    tunings: dict[Path, Trials] = field(default_factory=dict)  # by the folder of the comparison

    @property
    def federations(self) -> dict[str, list[Result]]:
        return by_federation(self.results)

    @property
    def evaluated(self) -> list[Result]:
        return [r for r in self.results if r.evaluated]

    def scale(self, results: Sequence[Result]) -> list[str]:
        """Return the notes to show beside every number of these runs: that they belong to a scaled-down reproduction."""
        paths = [r.path.resolve() for r in results]
        found = (r for folder, r in self.reproductions.items() if any(p.is_relative_to(folder) for p in paths))
        return [r.scale_note for r in found if r.scale_note]


def load_material(
    paths: Sequence[Path], baseline: str = "", metric: str = "", read: Callable[[Path], Result] = read_run
) -> Material:
    """Read every run in and below these folders; one that cannot be read is reported, unless there is no other."""
    results, unreadable = [], []
    for run in find_runs(paths):
        try:
            results.append(read(run))
        except FedTailorError as error:
            unreadable.append(str(error))
    if not results:
        raise FedTailorError(unreadable[0])
    folders = {folder for r in results for folder in r.path.resolve().parents if (folder / FILE).is_file()}
    reproductions = {folder: Reproduction.read(folder) for folder in sorted(folders)}
    chosen = Headline(metric) if metric else next((r.metric for r in results if r.evaluated), Headline())
    parents = sorted({folder for r in results for folder in r.path.resolve().parents[:2]})
    tunings = {folder: found for folder in parents if (found := _tuning(folder, unreadable))}
    material = Material(results, reproductions, unreadable, baseline, chosen, tunings)
    _check(material, metric)
    return material


def _tuning(folder: Path, unreadable: list[str]) -> Trials:
    """Read the trials of a comparison; damaged ones are reported."""
    try:
        return read_tuning(folder / TUNING)
    except FedTailorError as error:
        unreadable.append(str(error))
        return {}


def _check(material: Material, metric: str) -> None:
    """Refuse a baseline or a metric that no run has."""
    names = [name for runs in material.federations.values() for name in by_method([r for r in runs if r.evaluated])]
    if material.baseline and material.baseline not in names:
        raise FedTailorError(_unknown("is of the baseline", material.baseline, names))
    if metric and not any(r.curve(material.metric)[0] for r in material.evaluated):
        columns = {c.removesuffix("_mean") for r in material.evaluated for c in r.last if c.endswith("_mean")}
        known = sorted(c for c in columns if not c.startswith(("best_", "validation_")))
        raise FedTailorError(_unknown("has the metric", metric, known))


def _unknown(what: str, wanted: str, known: Sequence[str]) -> str:
    return f"No run {what} '{wanted}'.{nearest(wanted, known)} There are: {', '.join(dict.fromkeys(known))}."
