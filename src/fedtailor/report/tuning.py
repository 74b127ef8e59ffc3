"""What tuning tried and chose: a table of the chosen settings, and scores against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.experiment.headline import Headline
from fedtailor.report.charts import Chart, Series, save_picture
from fedtailor.report.sheets import Sheet
from fedtailor.tuning.trials import Trial, read_trials
from fedtailor.tuning.tune import BASE

Trials = Mapping[str, Sequence[Trial]]  # by method
NOTES = (
    "Chosen by the pooled score on validation samples, which are held out of the clients' training samples. Test: mean over clients of "
    "the chosen trial, which had fewer training samples than the runs that follow.",
    "Best test round: the best that any round of any trial reached on test samples. Who reports that, tunes on the test samples.",
)


def read_tuning(folder: Path) -> dict[str, list[Trial]]:
    """Read all trials below a folder, by method; empty if it holds none."""
    found = {base.parent.name: read_trials(base.parent) for base in sorted(folder.glob(f"*/{BASE}"))}
    return {name: trials for name, trials in found.items() if trials}


def tuning_sheet(trials: Trials, *, with_settings: bool = True) -> Sheet:
    """Return one row per method, the best first: the scores of the trial that was chosen and, unless too wide, its settings."""
    metric = metric_of(next(iter(trials.values())))
    complete = {name: [trial for trial in tried if trial.state == "complete"] for name, tried in trials.items()}
    best = {name: max(own, key=lambda trial: trial.order) for name, own in complete.items() if own}
    rows = []
    for name in [*sorted(best, key=lambda name: best[name].order, reverse=True), *(n for n in trials if n not in best)]:
        tried, chosen = trials[name], best.get(name)
        pruned = sum(trial.state == "pruned" for trial in tried)
        tested = [trial.best_test for trial in tried if trial.best_test is not None]
        tempting = (min if metric.lower_is_better else max)(tested, default=None)
        scores = [*((chosen.score, chosen.test) if chosen else (None, None)), tempting]
        words = settings(chosen) if chosen else "none: every trial failed or was pruned"
        count = f"{len(tried)} ({pruned} pruned)" if pruned else str(len(tried))
        shown = (metric.shown(score) if score is not None else "—" for score in scores)
        minutes = sum(trial.seconds for trial in tried) / 60
        rows.append((name, *([words] if with_settings else []), count, *shown, f"{minutes:.1f}"))
    columns = ("trials", f"{metric.title} (validation)", f"{metric.title} (test)", "best test round", "minutes")
    header = ("method", *(["chosen settings"] if with_settings else []), *columns)
    return Sheet("Tuning", header, rows, NOTES, left=1 + with_settings)


def settings(trial: Trial) -> str:
    """Return the values of a trial as overrides, such as lr=0.1 head_epochs=5."""
    return " ".join(f"{key.removeprefix('method.')}={value}" for key, value in trial.values.items())


def sensitivity_chart(trials: Trials) -> Chart:
    """Chart the score on validation samples against the learning rate, for each method and optimizer."""
    metric = metric_of(next(iter(trials.values())))
    points: dict[str, list[tuple[float, float]]] = {}
    for name, tried in trials.items():
        for trial in tried:
            if trial.score is not None and "lr" in trial.values:
                optimizer = trial.values.get("optimizer", "sgd")
                label = name if optimizer == "sgd" else f"{name}, {optimizer}"
                points.setdefault(label, []).append((trial.values["lr"], metric.scale * trial.score))
    lines = [Series(label, *np.array(sorted(own), dtype=float).T) for label, own in points.items()]
    return Chart("learning rate", metric.axis(f"{metric.title} on validation samples"), lines, log=True)


def sensitivity_picture(trials: Trials, path: Path) -> bool:
    """Draw the chart; return False, and draw nothing, if no learning rate was searched."""
    chart = sensitivity_chart(trials)
    if chart.series:
        save_picture([chart], path, size=(7, 4.2))
    return bool(chart.series)


def metric_of(trials: Sequence[Trial]) -> Headline:
    return Headline(trials[0].metric, trials[0].lower_is_better)
