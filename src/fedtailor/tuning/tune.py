"""Search the settings of one method: trials proposed by Optuna, pruned early, judged on validation samples alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedtailor.data.federation import Federation
from fedtailor.errors import FedTailorError
from fedtailor.experiment.callbacks import Callbacks, calling
from fedtailor.experiment.config import Config
from fedtailor.experiment.lock import locked
from fedtailor.experiment.run import simulation_of
from fedtailor.experiment.run_folder import other_settings
from fedtailor.files import make_folder, replace_text
from fedtailor.learning.metrics import Metric
from fedtailor.randomness import derive
from fedtailor.tuning.space import Space, Values, defaults, rounded, values_of, with_drawn
from fedtailor.tuning.trials import Trial, best_trial, read_trials, write_trial

if TYPE_CHECKING:
    import optuna

TUNING = "tuning"  # its folder in that of a comparison
BASE = "base.toml"  # what all trials of a method have in common
VALIDATION = 0.2  # held out of each client's training samples, unless the protocol asks for another share
EVALUATIONS = 10  # of a trial at most: each costs a pass over all samples
RANDOM = 4  # trials that are drawn at random before Optuna learns from them, and before any is pruned
WARMUP = 0.3  # share of the rounds in which no trial is pruned

OnTrial = Callable[[str, Trial, Trial | None], None]  # a method, its last trial, its best one so far


@dataclass(frozen=True)
class Tuned:
    """A method's trials, and the config with the best of them."""

    name: str
    config: Config
    space: Space
    trials: list[Trial]

    @property
    def best(self) -> Trial:
        return best_trial(self.trials)

    @property
    def values(self) -> Values:
        """The chosen settings, as the keys and values of a config."""
        return self.best.values

    @property
    def seconds(self) -> float:
        return sum(trial.seconds for trial in self.trials)


def tune_method(
    name: str,
    config: Config,
    space: Space,
    budget: int,
    folder: Path,
    federation: Federation,
    net: nn.Module | None = None,
    callbacks: Callbacks = (),
    on_trial: OnTrial | None = None,
) -> Tuned:
    """Carry out what is left of `budget` trials of a method in `folder`.

    Every trial depends on those before it and on the seed alone, so a search that was killed ends with the same choice.
    """
    make_folder(folder)
    with locked(folder):
        trials = _begin(folder, config, space)[:budget]
        while len(trials) < budget:
            proposed = _proposed(config, space, trials)
            trial = _carry_out(proposed, len(trials), config, federation, net, callbacks)
            write_trial(folder, trial)
            trials.append(trial)
            if on_trial is not None:
                on_trial(
                    name, trial, max((t for t in trials if t.state == "complete"), key=lambda t: t.order, default=None)
                )
        return Tuned(name, config, space, trials)


def _begin(folder: Path, config: Config, space: Space) -> list[Trial]:
    """Note what is tuned and return the trials so far; refuse a folder that holds those of something else."""
    base = folder / BASE
    if not base.exists():
        replace_text(base, config.to_toml())
    trials = read_trials(folder)
    other = other_settings(Config.load(base), config)
    if trials and trials[0].drawn.keys() != space.keys():
        other = ", ".join(sorted(trials[0].drawn.keys() ^ space.keys()))
    if other:
        raise FedTailorError(
            f"'{folder}' holds trials with other settings ({other}). Choose another --out, move it away, or set them back."
        )
    return trials


def _proposed(config: Config, space: Space, trials: list[Trial]) -> optuna.Trial:
    """Return the next trial. The first has the config's own values, so that tuning hardly ends below them."""
    optuna = _optuna()
    seed = derive(config.settings.seed, "tune", config.method.name, len(trials)) % 2**32
    warmup = int(WARMUP * config.settings.rounds)
    study = optuna.create_study(
        direction="minimize" if trials and trials[0].lower_is_better else "maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=warmup),
    )
    dimensions = {
        key: optuna.distributions.CategoricalDistribution(search.choices)
        if search.choices
        else optuna.distributions.FloatDistribution(search.low, search.high, log=search.log)
        for key, search in space.items()
    }
    states = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    for trial in trials:
        state = optuna.trial.TrialState[states[trial.state]]
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.drawn,
                distributions=dimensions,
                value=trial.score,
                intermediate_values=trial.rounds,
                state=state,
            )
        )
    if not trials:
        study.enqueue_trial(dict(defaults(config, space)))
    return study.ask(dimensions)


def _carry_out(
    proposed: optuna.Trial,
    number: int,
    config: Config,
    federation: Federation,
    net: nn.Module | None,
    callbacks: Callbacks,
) -> Trial:
    """Run one trial to its end, or until it is pruned."""
    drawn = rounded(proposed.params)
    config = with_drawn(config, drawn)
    began = time.perf_counter()
    rounds: dict[int, float] = {}
    pruned, may_prune = (
        False,
        not config.method.closing_steps,
    )  # before these, a round says little about the personal models
    with simulation_of(judged(config), federation, net) as simulation, calling(callbacks, simulation) as after_round:
        metric = simulation.worker.metrics[0]
        for record in simulation:
            after_round(record)
            value = validation_score(record, metric)
            if record["phase"] == "round" and value is not None:
                rounds[record["round"]] = value
                proposed.report(value, record["round"])
                if pruned := may_prune and proposed.should_prune():
                    break
    last = next((r for r in reversed(simulation.metrics) if r["loss"] is not None), {})
    score = None if pruned else validation_score(last, metric)
    tested = [value for r in simulation.metrics if (value := _finite(r.get(f"{metric.name}_mean"))) is not None]
    return Trial(
        number=number,
        drawn=dict(drawn),
        values=dict(values_of(config, drawn)),
        state="pruned" if pruned else "failed" if score is None else "complete",
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        rounds=rounds,
        score=score,
        loss=None if pruned else _finite(last.get("validation_loss")),
        test=None if pruned else _finite(last.get(f"{metric.name}_mean")),
        best_test=(min if metric.lower_is_better else max)(tested, default=None),
        seconds=time.perf_counter() - began,
    )


def judged(config: Config) -> Config:
    """Return a config whose runs hold samples out to be judged on, and are evaluated a few times only."""
    settings = config.settings
    every = max(settings.eval_every, math.ceil(settings.rounds / EVALUATIONS))
    return replace(config, settings=replace(settings, validation=settings.validation or VALIDATION, eval_every=every))


def validation_score(record: Mapping[str, Any], metric: Metric) -> float | None:
    """Return the pooled value of a metric on the clients' validation samples or, where that is not known, the mean over clients."""
    name = f"validation_{metric.name}"
    return next((v for key in (name, f"{name}_mean") if (v := _finite(record.get(key))) is not None), None)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _optuna() -> Any:
    """Import Optuna, without its messages: `on_trial` reports progress."""
    try:
        import optuna
    except ImportError:
        raise FedTailorError("Tuning needs Optuna:  pip install 'fedtailor[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
