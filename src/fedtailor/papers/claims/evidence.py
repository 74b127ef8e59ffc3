"""What the finished runs say about each claim, as evidence.json holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from fedtailor.experiment.headline import Headline
from fedtailor.files import make_folder, replace_text
from fedtailor.papers.claims.claim import Arm, ArmPair, Claim, in_points, jobs_of
from fedtailor.papers.claims.effect import Effect, effect, together, verdict
from fedtailor.papers.claims.finished import Finished, finished_runs, run_of
from fedtailor.papers.grid import Job
from fedtailor.papers.presets import find
from fedtailor.papers.reproduction import ReproducedCell, rank_correlation


class Compared(BaseModel):
    """One comparison: leads in points, by seed and with the interval of their mean; gains over the last fifth of rounds."""

    arm: str
    against: str
    published: float | None
    seeds: list[int] = []
    leads: list[float] = []
    lead: float | None = None
    low: float | None = None
    high: float | None = None
    better: float | None = None
    worse: float | None = None
    gains: tuple[float, float] | None = None
    verdict: Literal["holds", "does not", "open"] = "open"
    why_open: str = ""


class ArmResult(BaseModel):
    """The last models of an arm: mean over clients in percent, one per seed."""

    arm: str
    overrides: list[str]
    means: dict[int, float]


class Cost(BaseModel):
    """Runs, and seconds of one core; those to come are estimated."""

    runs: int
    finished: int
    seconds: float
    seconds_left: float | None = None
    seconds_per_round: float | None = None


class ProtocolRun(BaseModel):
    """An affordable protocol: what all of its runs have in common."""

    title: str
    overrides: str
    changed: str = ""


class ClaimEvidence(BaseModel):
    """A claim, its verdict, and everything that the verdict was made of."""

    name: str
    paper: str
    says: str
    source: str
    protocol: str
    full: str
    metric: str
    within: float | None
    decides: str
    changed: str = ""
    found: str
    verdict: Literal["holds", "does not", "open"]
    comparisons: list[Compared]
    arms: list[ArmResult]
    rank_correlation: float | None
    cost: Cost


class Evidence(BaseModel):
    """All claims; the hours count shared runs once."""

    claims: list[ClaimEvidence]
    protocols: dict[str, ProtocolRun]
    runs: int
    finished: int
    seconds: float

    def without_clock(self) -> str:
        """Return the JSON text without what depends on the machine's speed: equal runs give equal texts."""
        return self.model_dump_json(exclude={"seconds": True, "claims": {"__all__": {"cost": True}}})


@dataclass(frozen=True)
class ArmRun:
    """What a finished run of an arm is judged by: the last score of each client, and the points gained over the last fifth of rounds."""

    clients: np.ndarray
    gain: float | None


Runs = Mapping[Arm, Mapping[int, ArmRun]]


def evidence_of(
    claims: Sequence[Claim],
    out: Path,
    left: Mapping[str, float] | None = None,
    tuned: Path | None = None,
    finished: Finished | None = None,
) -> Evidence:
    """Judge the claims by finished runs, and by the tuned runs in the file that bench.judge writes.

    `left` has the estimated seconds of runs that are not finished; `finished` are by default those below `out`.
    """
    judge = json.loads(tuned.read_text()) if tuned else {}
    jobs = jobs_of(claims, out)
    ended = finished_runs(jobs) if finished is None else finished
    done = [run for job in jobs if (run := run_of(job, ended))]
    return Evidence(
        claims=[_judged(claim, out, left or {}, judge, ended) for claim in claims],
        protocols={
            p.name: ProtocolRun(title=p.title, overrides=" ".join(p.overrides), changed=p.changed)
            for p in (c.protocol for c in claims)
        },
        runs=len(jobs),
        finished=len(done),
        seconds=round(sum(run.seconds for run in done), 1),
    )


def remembered(out: Path, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the estimated seconds of runs by name: these, and those that were measured before, which a file keeps."""
    file = out / "seconds.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    if seconds:
        make_folder(out)
        replace_text(file, json.dumps({**known, **seconds}, indent=1) + "\n")
    return {**known, **seconds}


def _judged(
    claim: Claim, out: Path, left: Mapping[str, float], judge: Mapping[str, Any], ended: Finished
) -> ClaimEvidence:
    known = judge.get(claim.protocol.judged, {})
    runs = {
        arm: _tuned(known, arm) if claim.protocol.judged else _finished(claim, arm, out, ended) for arm in claim.arms
    }
    compared = [_compared(claim, comparison, runs) for comparison in claim.comparisons]
    metric = Headline(claim.metric)
    means = {
        arm: {seed: 100 * float(np.nanmean(run.clients)) for seed, run in own.items()} for arm, own in runs.items()
    }
    return ClaimEvidence(
        name=claim.name,
        paper=claim.paper,
        says=claim.says,
        source=claim.source,
        protocol=claim.protocol.name,
        full=f"{claim.full[0]}: {claim.full[1]}",
        metric=metric.title,
        within=claim.within,
        decides=claim.decides,
        changed=claim.changed,
        found=claim.found,
        verdict=together([c.verdict for c in compared]),
        comparisons=compared,
        arms=[
            ArmResult(
                arm=arm.name,
                overrides=list(claim.overrides(arm)),
                means={seed: round(mean, 4) for seed, mean in means[arm].items()},
            )
            for arm in claim.arms
        ],
        rank_correlation=_rank_correlation(claim, means),
        cost=_cost(claim.jobs(out), left, ended),
    )


def _finished(claim: Claim, arm: Arm, out: Path, ended: Finished) -> dict[int, ArmRun]:
    runs = {seed: run_of(claim.job(arm, seed, out), ended) for seed in range(claim.seeds)}
    return {seed: ArmRun(run.clients(claim.metric), run.gains[claim.metric]) for seed, run in runs.items() if run}


def _tuned(known: Mapping[str, Any], arm: Arm) -> dict[int, ArmRun]:
    """Return the runs of a method that bench.judge tuned and ran; its file does not tell the gain over the last rounds."""
    runs = known.get(arm.method, {"runs": []})["runs"]
    return {run["seed"]: ArmRun(np.array(run["clients"], dtype=float), None) for run in runs}


def _compared(claim: Claim, comparison: ArmPair, runs: Runs) -> Compared:
    one, other = runs[comparison.arm], runs[comparison.against]
    seeds = sorted(one.keys() & other.keys())
    found = Compared(arm=comparison.arm.name, against=comparison.against.name, published=comparison.published)
    measured = effect({seed: (one[seed].clients, other[seed].clients) for seed in seeds})
    if not measured.seeds:
        return found.model_copy(update={"why_open": "not run"})
    gains = tuple(_mean_gain([side[seed] for seed in seeds]) for side in (one, other))
    known = None not in gains
    ahead = (gains[0] or 0.0) - (gains[1] or 0.0)
    decided, why = verdict(measured, comparison.published, ahead, claim.within)
    shown = {"gains": gains if known else None, "verdict": decided, "why_open": why}
    return found.model_copy(update={**_rounded(measured), **shown})


def _mean_gain(runs: Sequence[ArmRun]) -> float | None:
    gains = [run.gain for run in runs if run.gain is not None]
    return round(float(np.mean(gains)), 4) if gains else None


def _rounded(found: Effect) -> dict[str, object]:
    bounds = {"low": found.low, "high": found.high}
    return {
        "seeds": list(found.seeds),
        "leads": [round(lead, 4) for lead in found.leads],
        "lead": round(found.lead, 4),
        **{name: round(value, 4) if np.isfinite(value) else None for name, value in bounds.items()},
        "better": round(found.better, 4),
        "worse": round(found.worse, 4),
    }


def _rank_correlation(claim: Claim, means: Mapping[Arm, Mapping[int, float]]) -> float | None:
    """Return Spearman's correlation with the published column if all of its rows were run with all seeds."""
    numbers = {cell.row: in_points(cell) for cell in find(claim.full[0]).cells if cell.column == claim.full[1]}
    whole = {arm.name: own for arm, own in means.items() if len(own) == claim.seeds}
    if None in numbers.values() or not numbers.keys() <= whole.keys():
        return None
    cells = [
        ReproducedCell(method=row, column="", published=number, measured=float(np.mean(list(whole[row].values()))))
        for row, number in numbers.items()
    ]
    return rank_correlation(cells)


def _cost(jobs: Sequence[Job], left: Mapping[str, float], ended: Finished) -> Cost:
    done = [run for job in jobs if (run := run_of(job, ended))]
    open_ = [job for job in jobs if not run_of(job, ended)]
    known = all(job.name in left for job in open_)
    probed = [left[job.name] / job.steps for job in open_ if job.name in left and not job.done]
    rates = probed or [run.seconds / run.steps for run in done]
    return Cost(
        runs=len(jobs),
        finished=len(done),
        seconds=round(sum(run.seconds for run in done), 1),
        seconds_left=round(sum(left[job.name] for job in open_), 1) if known else None,
        seconds_per_round=round(float(np.mean(rates)), 3) if rates else None,
    )
