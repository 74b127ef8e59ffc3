"""Advice for a federation: which method with which settings, what it gains, who loses, or that federating is not worth it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from torch import nn

from fedtailor.analysis.intervals import student
from fedtailor.api.plan import plan
from fedtailor.api.run import AnyNet, Data, given, new_folder, values_of
from fedtailor.api.tune import fixed_keys
from fedtailor.data.federation import Federation
from fedtailor.data.skew import Skew, skew_of
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks
from fedtailor.experiment.config import TABLES, Config, Settings
from fedtailor.experiment.headline import Headline
from fedtailor.experiment.options import RunOptions, keywords_of
from fedtailor.experiment.progress import Progress
from fedtailor.experiment.run import simulation_of
from fedtailor.files import make_folder, replace_text
from fedtailor.methods import methods
from fedtailor.tuning.space import replaced, search_space
from fedtailor.tuning.tune import TUNING, OnTrial, Tuned, judged, tune_method

ALONE, AVERAGE = "local", "fedavg"
CANDIDATES = (ALONE, AVERAGE, "fedavg-ft", "fedrep", "tailor")
MINUTES = 10.0
SEARCH = 0.6  # share of the time that the search for settings takes; the rest measures gains
MOST_TRIALS = 12  # per method, whatever time is left
SEEDS = 3  # of the runs that gains are measured with
WORTH = 0.005  # a smaller gain is none: half a point of accuracy, or so much of what a client reaches alone


@dataclass(frozen=True)
class Gain:
    """The gain of each client on validation samples, and the mean over clients with its 95 % interval (Student's t)."""

    clients: np.ndarray
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, clients: np.ndarray) -> Gain:
        known = clients[np.isfinite(clients)]
        if len(known) < 2:
            return cls(clients, float(known.mean()) if len(known) else math.nan, -math.inf, math.inf)
        found = student(known)
        return cls(clients, float(found.values), float(found.low), float(found.high))


@dataclass(frozen=True)
class Advice:
    """What to do with a federation, and why. Gains are positive where the method is better, also of an error such as RMSE."""

    verdict: Literal["federate", "alone", "unclear"]
    method: str
    config: Config
    values: Mapping[str, Any]  # its chosen settings, as keys and values of a config
    skew: Skew
    metric: Headline
    scores: Mapping[str, float]  # of each candidate with its best settings, on validation samples
    over_alone: Gain
    over_average: Gain
    losing: Sequence[str]  # clients that did worse than alone
    names: Sequence[str]
    bytes_per_round: float
    seconds: float  # of one run with the chosen settings
    minutes: float  # that the advice took
    trials: int

    def __repr__(self) -> str:
        from fedtailor.report.recommendation import sentences

        return "\n".join(sentences(self))


@keywords_of(Settings)
def recommend(
    federation: Data,
    candidates: Sequence[str] = CANDIDATES,
    *,
    minutes: float = MINUTES,
    net: AnyNet | None = None,
    head: str | None = None,
    out: str | PathLike[str] | None = None,
    callbacks: Callbacks | None = None,
    **options: Unpack[RunOptions],
) -> Advice:
    """Try some methods on a federation for about so many minutes, and say which to use and what it gains over training alone.

    Only training samples are looked at: settings are chosen and gains are measured on parts of them that are held out.

    >>> advice = ft.recommend(federation, minutes=5, rounds=20)  # advice.verdict is federate, alone or unclear
    """
    path = Path(out) if out is not None else new_folder("advice")
    values = values_of(federation, net, head, options)
    fixed = fixed_keys(federation, options)
    return advise(values, candidates, minutes, path, *given(federation, net), fixed=fixed, callbacks=callbacks)


def advise(
    values: Mapping[str, Any],
    candidates: Sequence[str],
    minutes: float,
    path: Path,
    federation: Federation | None = None,
    net: nn.Module | None = None,
    *,
    fixed: Collection[str] | None = None,
    callbacks: Callbacks | None = None,
    on_trial: OnTrial | None = None,
) -> Advice:
    """Search settings of the candidates in `path`, measure what the best of them gains, and decide."""
    began = time.monotonic()
    fixed = [key for key in values if key not in TABLES] if fixed is None else fixed
    callbacks = [Progress()] if callbacks is None else callbacks
    first = Config.from_values({**values, "method": ALONE})
    federation = first.federation() if federation is None else federation
    if not federation.at_hand:
        raise FedTailorError("The samples of this federation are at its sites: nothing can be tried here.")
    names = _fitting(candidates, federation)
    make_folder(path)
    plans = plan(values, names, [first.settings.seed], path)
    configs = dict(zip(names, plans.values(), strict=True))
    tuned = _search(configs, federation, net, 60 * minutes, path / TUNING, set(fixed), callbacks, on_trial)
    best = max((name for name in names if name != ALONE), key=lambda name: tuned[name].best.order)
    runs = {
        name: _measured(tuned[name], federation, net, path, callbacks) for name in dict.fromkeys([best, ALONE, AVERAGE])
    }
    metric = Headline(tuned[best].best.metric, tuned[best].best.lower_is_better)
    over_alone, over_average = (_gain(runs[best], runs[base], metric) for base in (ALONE, AVERAGE))
    alone = float(np.nanmean([run["clients"] for run in runs[ALONE]]))
    verdict = decide(over_alone, WORTH if metric.unit else WORTH * abs(alone))
    chosen = ALONE if verdict == "alone" else best
    gains = over_alone.clients
    return Advice(
        verdict=verdict,
        method=best,
        config=replaced(configs[chosen], tuned[chosen].values),
        values=tuned[chosen].values,
        skew=skew_of(federation),
        metric=metric,
        scores={name: float(tuned[name].best.score or 0.0) for name in names},
        over_alone=over_alone,
        over_average=over_average,
        losing=[federation.clients[int(i)].name for i in np.argsort(gains) if gains[i] < 0],
        names=[client.name for client in federation.clients],
        bytes_per_round=float(np.mean([run["bytes_per_round"] for run in runs[best]])),
        seconds=float(np.mean([run["seconds"] for run in runs[best]])),
        minutes=(time.monotonic() - began) / 60,
        trials=sum(len(found.trials) for found in tuned.values()),
    )


def decide(gain: Gain, worth: float) -> Literal["federate", "alone", "unclear"]:
    """Federate if the gain is worth it beyond chance, not if it is too small; else it is unclear."""
    if not gain.mean >= worth:
        return "alone"
    return "federate" if gain.low > 0 else "unclear"


def _fitting(candidates: Sequence[str], federation: Federation) -> list[str]:
    """Return the candidates that can do the task, with training alone and plain averaging among them."""
    wanted = dict.fromkeys([ALONE, AVERAGE, *candidates])
    kind = federation.task.kind
    return [name for name in wanted if kind in methods.find(name.partition(":")[0]).tasks]


def _search(
    configs: Mapping[str, Config],
    federation: Federation,
    net: nn.Module | None,
    seconds: float,
    folder: Path,
    fixed: set[str],
    callbacks: Callbacks,
    on_trial: OnTrial | None,
) -> dict[str, Tuned]:
    """Give each candidate a trial, then each another, as long as the time allows; trials from before count with their time."""
    spaces = {name: search_space(config, fixed) for name, config in configs.items()}
    tuned: dict[str, Tuned] = {}
    for budget in range(1, MOST_TRIALS + 1):
        for name, config in configs.items():
            place = folder / name.replace(":", "-")
            tuned[name] = tune_method(name, config, spaces[name], budget, place, federation, net, callbacks, on_trial)
        spent = sum(found.seconds for found in tuned.values())
        if spent * (budget + 1) / budget > SEARCH * seconds:
            break
    return tuned


def _measured(
    tuned: Tuned, federation: Federation, net: nn.Module | None, path: Path, callbacks: Callbacks
) -> list[dict[str, Any]]:
    """Run the chosen settings with new seeds, which hold out other samples; return each client's score on those."""
    base = replaced(tuned.config, tuned.values)
    runs = []
    for seed in range(base.settings.seed + 1, base.settings.seed + 1 + SEEDS):
        config = judged(replace(base, settings=replace(base.settings, seed=seed, eval_every=base.settings.rounds)))
        file = path / f"gain-{tuned.name.replace(':', '-')}-s{seed}.json"
        key = config.to_toml()
        if file.exists():
            known = json.loads(file.read_text())
            if known.get("config") == key:
                runs.append(known)
                continue
        began = time.perf_counter()
        with simulation_of(config, federation, net) as simulation:
            records = simulation.run(*callbacks).metrics
        name = simulation.worker.metrics[0].name
        held = [score.validation for score in simulation.scores.values()]
        rounds = [r for r in records if r["phase"] == "round"]
        found = {
            "config": key,
            "clients": [score.value(name) if score is not None else math.nan for score in held],
            "bytes_per_round": sum(r["bytes_up"] + r["bytes_down"] for r in rounds) / len(rounds),
            "seconds": time.perf_counter() - began,
        }
        replace_text(file, json.dumps(found))
        runs.append(found)
    return runs


def _gain(runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], metric: Headline) -> Gain:
    """Return the mean gain of each client over the seeds, in which both held out the same samples."""
    sign = -1.0 if metric.lower_is_better else 1.0
    gaps = np.array([sign * (np.array(a["clients"]) - np.array(b["clients"])) for a, b in zip(runs, base, strict=True)])
    known = np.isfinite(gaps)
    count = known.sum(axis=0)
    return Gain.of(np.where(count > 0, np.where(known, gaps, 0).sum(axis=0) / np.maximum(count, 1), np.nan))
