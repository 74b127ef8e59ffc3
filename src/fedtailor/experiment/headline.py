"""The metric that selects rounds and ranks methods: its title and number format, its columns in records, and which direction is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

TITLES = {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1", "mae": "MAE", "mse": "MSE", "rmse": "RMSE", "r2": "R²"}
SHARES = {"accuracy", "balanced_accuracy", "f1", "auroc", "auprc", "calibration_error"}  # from 0 to 1: shown in percent
LOWER_IS_BETTER = {"loss", "log_loss", "calibration_error", "mae", "mse", "rmse"}

Statistic = Literal["pooled", "mean", "spread", "worst", "best"]


@dataclass(frozen=True)
class Headline:
    """A metric by its name in metrics.jsonl. It needs neither PyTorch nor scikit-learn, so that commands start quickly."""

    name: str = "accuracy"
    lower: bool = False  # of a user's own metric, whose direction no list here knows

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Headline:
        """Return the metric that a record names; one that names none is ranked by accuracy."""
        return cls(record.get("select_by") or "accuracy", bool(record.get("lower_is_better", False)))

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def heading(self) -> str:
        return self.title[0].upper() + self.title[1:]

    @property
    def lower_is_better(self) -> bool:
        return self.lower or self.name in LOWER_IS_BETTER

    @property
    def scale(self) -> float:
        return 100.0 if self.name in SHARES else 1.0

    @property
    def unit(self) -> str:
        return "%" if self.name in SHARES else ""

    def axis(self, text: str) -> str:
        """Return an axis title with the unit."""
        return f"{text} (%)" if self.unit else text

    def of(self, record: Mapping[str, Any], statistic: Statistic) -> float:
        """Return a statistic of one round; NaN if the record does not have it."""
        for name in columns(self.name)[statistic]:
            if isinstance(value := record.get(name), int | float):
                return float(value)
        return np.nan

    def shown(self, value: float) -> str:
        """Format one number with its unit."""
        return f"{self.written(np.array([value]))} {self.unit}".rstrip()

    def written(self, values: np.ndarray) -> str:
        """Format the mean of several runs' numbers ± their standard deviation."""
        known = self.scale * values[np.isfinite(values)]
        if not len(known):
            return "—"
        form, fine = (".2f", ".2f") if self.unit else (".4g", ".2g")
        return f"{known.mean():{form}}" + (f" ± {known.std():{fine}}" if len(known) > 1 else "")


def last_mean(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe the last evaluation, such as ", mean accuracy of clients 93.92 %"; empty if there was none."""
    for record in reversed(records):
        metric = Headline.of_record(record)
        if np.isfinite(mean := metric.of(record, "mean")):
            return f", mean {metric.title} of clients {metric.shown(mean)}"
    return ""


@cache
def columns(metric: str) -> dict[Statistic, tuple[str, ...]]:
    """Return the columns of metrics.jsonl that hold a metric's statistics; those of accuracy, which came first, have short names."""
    short = metric == "accuracy"
    return {
        "pooled": (metric,),
        "mean": (f"{metric}_mean",),
        "spread": ("spread",) if short else (f"{metric}_spread", f"{metric}_std"),
        "worst": ("worst_decile",) if short else (f"{metric}_worst_decile",),
        "best": (f"best_{metric}",),
    }
