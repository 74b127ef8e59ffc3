"""What tuning tried and chose: a table of the chosen settings, and scores against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.errors import FedTailorError
from fedtailor.experiment.headline import Headline
from fedtailor.report.charts import Chart, Curve, save_picture
from fedtailor.report.sheets import Sheet
from fedtailor.tuning.trials import Trial, best_trial, read_trials
from fedtailor.tuning.tune import BASE

Trials = Mapping[str, Sequence[Trial]]  # by method


def read_tuning(folder: Path) -> dict[str, list[Trial]]:
    """Read all trials below a folder, by method; empty if it holds none."""
    found = {base.parent.name: read_trials(base.parent) for base in sorted(folder.glob(f"*/{BASE}"))}
    return {name: trials for name, trials in found.items() if trials}


def tuning_sheet(trials: Trials, *, with_settings: bool = True) -> Sheet:
    """Return one row per method, the best first: the scores of the trial that was chosen and, unless too wide, its settings."""
    metric = metric_of(next(iter(trials.values())))
    ranked = sorted(trials.items(), key=lambda item: _place(item[1]))
    columns = ("trials", f"{metric.title} (validation)", f"{metric.title} (test)", "best test round", "minutes")
    header = ("method", *(["chosen settings"] if with_settings else []), *columns)
    rows = [(name, *([_chosen(tried)] if with_settings else []), *_numbers(tried, metric)) for name, tried in ranked]
    notes = [
        "Chosen by the pooled score on validation samples, which are held out of the clients' training samples. Test: mean over clients of "
        "the chosen trial, which had fewer training samples than the runs that follow.",
        "Best test round: the best that any round of any trial reached on test samples. Who reports that, tunes on the test samples.",
    ]
    return Sheet("Tuning", header, rows, notes, left=1 + with_settings)


def _numbers(trials: Sequence[Trial], metric: Headline) -> list[str]:
    pruned = sum(trial.state == "pruned" for trial in trials)
    best = _best_or_none(trials)
    tested = [trial.best_test for trial in trials if trial.best_test is not None]
    tempting = (min if metric.lower_is_better else max)(tested, default=None)
    scores = [best.score if best else None, best.test if best else None, tempting]
    return [
        f"{len(trials)} ({pruned} pruned)" if pruned else str(len(trials)),
        *(metric.shown(score) if score is not None else "—" for score in scores),
        f"{sum(trial.seconds for trial in trials) / 60:.1f}",
    ]


def _chosen(trials: Sequence[Trial]) -> str:
    best = _best_or_none(trials)
    return settings(best) if best else "none: every trial failed or was pruned"


def settings(trial: Trial) -> str:
    """Return the values of a trial as overrides, such as lr=0.1 head_epochs=5."""
    return " ".join(f"{key.removeprefix('method.')}={value}" for key, value in trial.values.items())


def sensitivity_chart(trials: Trials) -> Chart:
    """Chart the score on validation samples against the learning rate, for each method and optimizer."""
    metric = metric_of(next(iter(trials.values())))
    marks = []
    for name, tried in trials.items():
        scored = [trial for trial in tried if trial.score is not None and "lr" in trial.values]
        for optimizer in dict.fromkeys(trial.values.get("optimizer", "") for trial in scored):
            own = sorted(
                (t.values["lr"], metric.scale * t.score)
                for t in scored
                if t.values.get("optimizer", "") == optimizer and t.score is not None
            )
            label = f"{name}, {optimizer}" if optimizer not in ("", "sgd") else name
            marks.append(Curve(label, *np.array(own, dtype=float).T))
    return Chart("learning rate", metric.axis(f"{metric.title} on validation samples"), marks, log=True)


def sensitivity_picture(trials: Trials, path: Path) -> bool:
    """Draw the chart; return False, and draw nothing, if no learning rate was searched."""
    chart = sensitivity_chart(trials)
    if chart.marks:
        save_picture([chart], path, size=(7, 4.2))
    return bool(chart.marks)


def metric_of(trials: Sequence[Trial]) -> Headline:
    return Headline(trials[0].metric, trials[0].lower_is_better)


def _best_or_none(trials: Sequence[Trial]) -> Trial | None:
    try:
        return best_trial(trials)
    except FedTailorError:
        return None


def _place(trials: Sequence[Trial]) -> tuple[float, ...]:
    best = _best_or_none(trials)
    return tuple(-part for part in best.order) if best else (np.inf,)
