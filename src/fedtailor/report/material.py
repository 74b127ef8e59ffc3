"""Everything a report is about, read from run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedtailor.errors import FedTailorError, nearest
from fedtailor.report.beside import Reproduction, reproductions_of, scale_of
from fedtailor.report.groups import by_federation, by_method
from fedtailor.report.results import Result, find_runs, read_run


@dataclass(frozen=True)
class Material:
    """The runs, the reproductions they are part of, what is wrong with folders that could not be read, and the baseline asked for."""

    results: list[Result]
    reproductions: list[Reproduction]
    unreadable: list[str] = field(default_factory=list)
    baseline: str = ""

    @property
    def federations(self) -> dict[str, list[Result]]:
        return by_federation(self.results)

    def scale(self, results: Sequence[Result]) -> list[str]:
        """What must be said beside every number of these runs, if they are part of a reproduction on a smaller scale."""
        return scale_of([r.path for r in results], self.reproductions)


def load_material(paths: Sequence[Path], baseline: str = "", read: Callable[[Path], Result] = read_run) -> Material:
    """Read every run in and below these folders; one that cannot be read is told of, unless there is no other."""
    results, unreadable = [], []
    for run in find_runs(paths):
        try:
            results.append(read(run))
        except FedTailorError as error:
            unreadable.append(str(error))
    if not results:
        raise FedTailorError(unreadable[0])
    material = Material(results, reproductions_of(r.path for r in results), unreadable, baseline)
    names = [name for runs in material.federations.values() for name in by_method([r for r in runs if r.evaluated])]
    if baseline and baseline not in names:
        known = ", ".join(dict.fromkeys(names))
        raise FedTailorError(f"No run is of the baseline '{baseline}'.{nearest(baseline, names)} There are: {known}.")
    return material
