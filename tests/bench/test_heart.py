"""The page of FLamby's Fed-Heart-Disease: what agrees, and what a method adds, by hand."""

from __future__ import annotations

import pytest

from bench.heart import agrees, page
from fedtailor.papers.reproduction import ReproducedCell, Reproduction

HOSPITALS = ("Cleveland", "Hungarian", "Switzerland", "VA")


def cell(method: str, column: str, measured: float, published: float | None = None, std: float | None = None):
    text = "" if published is None else str(published)
    return ReproducedCell(
        method=method,
        column=column,
        measured=measured,
        measured_std=1.0,
        published=published,
        published_std=std,
        published_text=text,
    )


@pytest.mark.parametrize(
    ("measured", "std", "rows", "expected"),
    [
        (74.0, 2.0, 104, True),
        (74.1, 2.0, 104, False),
        (76.0, None, 16, True),
        (70.9, 0.1, 104, True),
        (71.0, 0.1, 104, False),
    ],
)
def test_two_standard_deviations_or_one_test_row(measured, std, rows, expected):
    assert agrees(cell("FedAvg", "VA", measured, 70.0, std), rows) is expected


def test_the_page_counts_what_agrees_and_who_is_worse_off():
    told = Reproduction(
        preset="flamby/heart",
        title="",
        cells=[cell("FedAvg", h, 70.0 if h != "VA" else 90.0, 71.0, 1.0) for h in HOSPITALS],
        choices=["A choice."],
    )
    values = {"local": (70, 70, 70, 70), "fedavg": (72, 70, 70, 60), "ditto": (72, 74, 70, 70)}
    personal = Reproduction(
        preset="flamby/personalized",
        title="",
        cells=[cell(m, h, v) for m, own in values.items() for h, v in zip(HOSPITALS, own, strict=True)],
        choices=["Another."],
    )
    text = page(told, personal)
    assert "3 of 4 numbers lie within" in text
    assert "not: FedAvg at VA." in text
    assert "| FedAvg | 70.0 ± 1.0 (71.0 ± 1.0) |" in text
    assert "| ditto | 72.0 ± 1.0 | 74.0 ± 1.0 | 70.0 ± 1.0 | 70.0 ± 1.0 | 71.5 | +1.5 | +3.5 | none |" in text
    assert "| fedavg | 72.0 ± 1.0 | 70.0 ± 1.0 | 70.0 ± 1.0 | 60.0 ± 1.0 | 68.0 | -2.0 | +0.0 | VA |" in text
    assert "The highest mean is ditto's, +1.5 points over training alone." in text
