"""The metric that selects rounds and ranks methods, as the records of a run name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtailor.learning.metrics import METRICS


@dataclass(frozen=True)
class Headline:
    """Names of a metric's columns in metrics.jsonl, and how its values are written: shares in percent, other numbers as they are."""

    name: str = "accuracy"

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Headline:
        """That of a record; one that names none is ranked by accuracy."""
        return cls(str(record.get("select_by", "accuracy")))

    @property
    def mean(self) -> str:
        return f"{self.name}_mean"

    @property
    def best(self) -> str:
        return f"best_{self.name}"

    @property
    def spread(self) -> str:
        return "spread" if self.name == "accuracy" else f"{self.name}_spread"

    @property
    def worst_decile(self) -> str:
        return "worst_decile" if self.name == "accuracy" else f"{self.name}_worst_decile"

    @property
    def lower_is_better(self) -> bool:
        return self.name in METRICS and METRICS[self.name].lower_is_better

    @property
    def percent(self) -> bool:
        return self.name in METRICS and METRICS[self.name].bounds == (0.0, 1.0)

    @property
    def scale(self) -> float:
        """What values are multiplied with to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def title(self) -> str:
        """The metric with its unit, for an axis."""
        return f"{self.name} (%)" if self.percent else self.name

    def written(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"
