"""Ranks of methods as a table and as a critical-difference diagram."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtailor.analysis.ranking import RESAMPLES, Ranking
from fedtailor.report.charts import Chart, Series, forest
from fedtailor.report.sheets import Sheet


def ranks_sheet(found: Ranking, title: str = "Ranks") -> Sheet:
    bounds = zip(found.names, found.ranks, found.low, found.high, strict=True)
    rows = [(name, f"{rank:.2f}", f"{low:.2f} to {high:.2f}") for name, rank, low, high in bounds]
    apart = f"Mean ranks less than {found.difference:.2f} apart may differ by chance (Nemenyi, 5 %)."
    notes = [f"Rank 1 is best; mean over {found.blocks} blocks, a federation with a seed each. {apart}"]
    notes.append(f"Interval: 95 % of {RESAMPLES:,} bootstrap resamples of blocks and of the clients in them.")
    return Sheet(title, ("method", "mean rank", "interval"), rows, notes)


def ranks_chart(found: Ranking) -> Chart:
    """Chart mean ranks with intervals, and a bar beside methods that may differ by chance."""
    ranks = forest("mean rank (1 is best)", list(found.names), found.ranks, (found.low, found.high))
    right = max(float(found.high.max()), len(found.names)) + 0.15
    bars = [
        Series("", np.full(2, right + 0.15 * k), np.array([first - 0.2, last + 0.2]), kind="guide")
        for k, (first, last) in enumerate(found.alike)
    ]
    title = f"Beside a bar: no difference beyond chance (critical difference {found.difference:.2f})"
    return replace(ranks, series=[*ranks.series, *bars], title=title)
