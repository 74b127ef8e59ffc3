"""Summary metrics of a federation from its clients' scores."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedtailor.learning.scoring import Score


def summarize(scores: Mapping[int, Score]) -> dict[str, float]:
    """Pooled accuracy (every test sample counts alike), mean over clients (every client does), spread and worst decile of clients.

    Clients without test samples do not count. The worst decile is the mean accuracy of the tenth of clients (one at least) that fare worst.
    """
    tested = [s for s in scores.values() if s.total]
    if not tested:
        nan = float("nan")
        return {"accuracy": nan, "accuracy_mean": nan, "loss": nan, "spread": nan, "worst_decile": nan}
    total = sum(s.total for s in tested)
    accuracies = np.sort([s.accuracy for s in tested])
    worst = accuracies[: math.ceil(len(accuracies) / 10)]
    return {
        "accuracy": sum(s.correct for s in tested) / total,
        "accuracy_mean": float(accuracies.mean()),
        "loss": sum(s.loss for s in tested) / total,
        "spread": float(accuracies.std()),
        "worst_decile": float(worst.mean()),
    }
