"""A paper's claim: who beats whom, where, and the runs that test it.

The facts are in one TOML file per paper beside this module. protocols.toml has the affordable protocols; several claims share one, and
with it the runs of all arms that they have in common.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from fedtailor.data.pool import data_root
from fedtailor.errors import FedTailorError, nearest
from fedtailor.methods import methods
from fedtailor.papers.grid import Job, slug, with_seed
from fedtailor.papers.measures import MEASURES
from fedtailor.papers.presets import Overrides, PresetCell, find, settled, where_known
from fedtailor.papers.published import overrides_of

PAPERS = ("pgfedsplit", "heart", "fedsimsup", "fedafk", "fedah", "field")
FRACTIONS = "last-mean"  # the measure whose published numbers are fractions
SEEDS = 5
ALWAYS = ("save_models=false", "engine=inline")  # seeds deal samples anew: clients are part of what a verdict is about


@dataclass(frozen=True)
class ClaimProtocol:
    """An affordable protocol: what every run of it has in common."""

    name: str
    title: str
    overrides: Overrides
    judged: str = ""  # the setting of bench.judge whose tuned runs are looked at, in place of own ones
    changed: str = ""  # what was changed after runs had been seen, and why


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a method, or a variant of one."""

    name: str
    overrides: Overrides

    @property
    def method(self) -> str:
        return self.overrides[0].removeprefix("method=")


@dataclass(frozen=True)
class ArmPair:
    """The arm that is said to be ahead, and one that it is compared with; `published` is its lead in points."""

    arm: Arm
    against: Arm
    published: float | None = None


@dataclass(frozen=True)
class Claim:
    """One claim under one affordable protocol; `full` names the preset and column with the paper's own protocol."""

    paper: str
    key: str
    says: str
    source: str
    protocol: ClaimProtocol
    comparisons: tuple[ArmPair, ...]
    full: tuple[str, str]
    metric: str = "accuracy"
    seeds: int = SEEDS
    within: float | None = None  # points that the arm may be behind, where the claim is that little is lost
    decides: str = ""
    changed: str = ""  # what was changed after runs had been seen, and why
    found: str = ""  # where it fails: what was looked into

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.key}@{self.protocol.name}"

    @property
    def arms(self) -> list[Arm]:
        return list(dict.fromkeys(arm for c in self.comparisons for arm in (c.arm, c.against)))

    def overrides(self, arm: Arm) -> Overrides:
        """Return the overrides of an arm's runs; {data} stands for the data folder."""
        return settled([*where_known([*ALWAYS, *self.protocol.overrides], arm.overrides), *arm.overrides])

    def job(self, arm: Arm, seed: int, out: Path) -> Job:
        """Return the run of an arm; claims with the same protocol and arm get the same run."""
        overrides = tuple(override.replace("{data}", str(data_root())) for override in self.overrides(arm))
        name = slug(" ".join(override.removeprefix("method.").removeprefix("method=") for override in arm.overrides))
        folder = out / "cells" / f"{self.protocol.name}-{name}-s{seed}"
        return Job(folder, with_seed(overrides, seed), keeps_state=False)

    def jobs(self, out: Path) -> list[Job]:
        """Return the runs, all arms of a seed before the next seed, so that what is done can be compared."""
        if self.protocol.judged:
            return []
        return [self.job(arm, seed, out) for seed, arm in product(range(self.seeds), self.arms)]


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, paper by paper."""
    protocols = {
        name: ClaimProtocol(name, **{**facts, "overrides": tuple(facts["overrides"].split())})
        for name, facts in _read("protocols").items()
    }
    return tuple(claim for paper in PAPERS for claim in PaperClaims(paper, protocols).claims())


def named(names: Sequence[str]) -> tuple[Claim, ...]:
    """Return the claims of these papers ("fedah"), or these claims ("fedah/weights", "fedah/weights@fashion"); all if none is named."""
    spelled: dict[str, list[Claim]] = {}
    for claim in claims():
        for spelling in _spellings(claim):
            spelled.setdefault(spelling, []).append(claim)
    for name in names:
        if name not in spelled:
            raise FedTailorError(
                f"There is no claim '{name}'.{nearest(name, spelled)} `fedtailor claims` lists them all."
            )
    return tuple(dict.fromkeys(claim for name in names for claim in spelled[name])) if names else claims()


def _spellings(claim: Claim) -> tuple[str, str, str]:
    return claim.paper, claim.name.partition("@")[0], claim.name


def in_order(asked: Sequence[Claim]) -> list[Claim]:
    """Return the claims in the order in which they are run: the first of each paper, then the others."""
    first = {paper: next(c for c in asked if c.paper == paper) for paper in dict.fromkeys(c.paper for c in asked)}
    return [*first.values(), *(claim for claim in asked if claim not in first.values())]


def jobs_of(asked: Sequence[Claim], out: Path) -> list[Job]:
    """Return the runs of several claims, each once."""
    return list({job.name: job for claim in in_order(asked) for job in claim.jobs(out)}.values())


class PaperClaims:
    """One paper's TOML file, and the claims it defines."""

    def __init__(self, paper: str, protocols: dict[str, ClaimProtocol]) -> None:
        self.paper = paper
        self.facts = _read(paper)
        self.protocols = protocols

    def claims(self) -> list[Claim]:
        return [self.claim(facts, place) for facts in self.facts["claim"] for place in facts["on"].items()]

    def claim(self, facts: dict[str, Any], place: tuple[str, list[str]]) -> Claim:
        protocol, (preset, column) = place
        cells = {cell.row: cell for cell in find(preset).cells if cell.column == column}
        if not cells:
            raise FedTailorError(f"{self.paper}.toml, claim '{facts['id']}': '{preset}' has no column '{column}'.")
        return Claim(
            paper=self.paper,
            key=facts["id"],
            says=facts["says"],
            source=facts["source"],
            protocol=self.protocols[protocol],
            comparisons=tuple(self.comparison(*pair, cells, protocol) for pair in self.pairs(facts, cells)),
            full=(preset, column),
            metric=facts.get("metric", "accuracy"),
            seeds=facts.get("seeds", SEEDS),
            within=facts.get("within"),
            decides=facts.get("decides", ""),
            changed=self.facts.get("changed", ""),
            found=facts.get("found", {}).get(protocol, ""),
        )

    @staticmethod
    def pairs(facts: dict[str, Any], rows: Iterable[str]) -> list[tuple[str, str]]:
        """Return who is said to be ahead of whom: one arm of some others, one of all other rows of the table, or several pairs."""
        if "pairs" in facts:
            return [(arm, rival) for arm, rival in facts["pairs"]]
        arm = facts["arm"]
        return [(arm, rival) for rival in (rows if facts["against"] == "all" else facts["against"]) if rival != arm]

    def comparison(self, arm: str, rival: str, cells: dict[str, PresetCell], protocol: str) -> ArmPair:
        numbers = [in_points(cells[name]) if name in cells else None for name in (arm, rival)]
        lead = None if None in numbers else round(numbers[0] - numbers[1], 2)  # type: ignore[operator]
        return ArmPair(self.arm(arm, protocol), self.arm(rival, protocol), lead)

    def arm(self, name: str, protocol: str) -> Arm:
        """Return the arm of that name: as the file has it for this protocol, as the file has it, or as the paper's row."""
        arms = self.facts.get("arms", {})
        given = arms.get(protocol, {}).get(name) or arms.get(name)
        method, *options = given.split() if given else overrides_of(self.facts["paper"], name)
        spelled = methods.find(method.removeprefix("method=")).name  # FedAvg+FT is fedavg-ft: one spelling, one run
        return Arm(name, (f"method={spelled}", *options))


def in_points(cell: PresetCell) -> float | None:
    """Return a published number in percent."""
    if cell.published is None or MEASURES[cell.measure].lower_is_better:
        return None
    return 100 * cell.published if cell.measure == FRACTIONS else cell.published


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("fedtailor.papers.claims").joinpath(f"{name}.toml").read_text())
