"""Any metric is reported as accuracy is, with its own unit and direction."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from fedtailor.analysis.groups import by_method
from fedtailor.analysis.results import read_result
from fedtailor.errors import FedTailorError
from fedtailor.experiment.headline import Headline
from fedtailor.learning.metrics import METRICS
from fedtailor.report.charts import curves, strips, tradeoff
from fedtailor.report.clients import metric_picture
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.material import load_material
from fedtailor.report.page import page
from fedtailor.report.sections import sections
from fedtailor.report.sheets import as_rich
from fedtailor.report.tables import brief_sheet, comparison_sheets


@pytest.fixture
def errors(make_run, tmp_path):
    """Two methods with errors: the lower is the better."""
    make_run("a", "method=fedavg", accuracy=[9.0, 7.0], clients=[6.0, 7.0, 8.0], metric="rmse")
    make_run("b", "method=fedrep", accuracy=[8.0, 3.0], clients=[1.0, 2.0, 6.0], metric="rmse")
    return tmp_path


def test_the_lowest_error_is_the_best(errors):
    material = load_material([errors])
    (sheet,) = comparison_sheets(material)
    row = dict(zip(sheet.header, sheet.rows[0], strict=True))
    assert (row["method"], row["against the best"]) == ("fedrep", "best")
    assert (row["RMSE (mean of clients)"], row["worst decile"], row["spread of clients"]) == ("2.99", "1", "2.16")
    assert any("Lower is better" in note for note in sheet.notes)
    text = page(sections(material, "x")).partition("<main>")[2]
    assert "Lowest mean RMSE of clients: fedrep, 2.99." in text
    assert "worst decile, lower is fairer" in text
    assert "accuracy" not in text.partition("<script")[0]


def test_charts_and_pictures_show_errors_as_they_are(errors, figures):
    results = [read_result(errors / name) for name in "ab"]
    groups, metric = by_method(results), results[0].metric
    assert metric == Headline("rmse")
    assert plotly_chart(curves(groups, metric))["data"][1]["y"] == [7.99, 2.99]
    assert strips(groups, metric).series[1].x.tolist() == [1.0, 2.0, 6.0]
    costs = [np.array([1.0]), np.array([2.0])]
    *dots, front = tradeoff(groups, metric, "bytes", costs).series
    assert ([dot.kind for dot in dots], len(front.x)) == (["dots", "dots"], 2)  # dearer, but with a lower error
    *dots, front = tradeoff(groups, metric, "bytes", costs[::-1]).series
    assert ([dot.kind for dot in dots], len(front.x)) == (["hollow", "dots"], 1)
    metric_picture(results, errors / "p.png")
    assert figures[0].axes[0].get_ylabel() == "mean RMSE of personal models"
    assert list(figures[0].axes[0].lines[1].get_ydata()) == pytest.approx([7.99, 2.99])


def test_another_metric_can_be_asked_for(make_run, tmp_path):
    """Each with its own best: fedavg leads by accuracy, fedrep by log-loss."""
    for name, loss in (("fedavg", 0.9), ("fedrep", 0.2)):
        accuracy = [0.8 if name == "fedavg" else 0.7]
        make_run(name, f"method={name}", accuracy=accuracy, more={"log_loss": loss, "log_loss_mean": loss})
    assert [row[0] for row in comparison_sheets(load_material([tmp_path]))[0].rows] == ["fedavg", "fedrep"]
    material = load_material([tmp_path], metric="log_loss")
    assert [row[0] for row in comparison_sheets(material)[0].rows] == ["fedrep", "fedavg"]
    assert "Log loss over rounds" in page(sections(material, "x"))
    with pytest.raises(FedTailorError, match=r"No run has the metric 'log-loss'.*There are: accuracy, log_loss"):
        load_material([tmp_path], metric="log-loss")


def test_a_best_round_says_on_which_samples_it_was_chosen(make_run, tmp_path):
    honest = make_run("a", more={"validation_accuracy": 0.5})
    (sheet,) = comparison_sheets(load_material([honest]))
    assert "best round (chosen on validation data)" in sheet.header
    (sheet,) = comparison_sheets(load_material([honest, make_run("b", "seed=1")]))
    assert "best round (chosen on test data)" in sheet.header
    console = Console(width=200, file=io.StringIO())
    console.print(as_rich(brief_sheet([read_result(tmp_path / "b")])))
    assert "chosen on test data" in console.file.getvalue()


def test_a_method_without_the_metric_is_neither_the_best_nor_in_the_charts(make_run, tmp_path):
    make_run("a", "method=fedavg", accuracy=[0.9])
    make_run("b", "method=fedrep", accuracy=[0.6], more={"auroc": 0.7, "auroc_mean": 0.7})
    material = load_material([tmp_path], metric="auroc")
    (sheet,) = comparison_sheets(material)
    assert [row[0] for row in sheet.rows] == ["fedrep", "fedavg"]
    assert dict(zip(sheet.header, sheet.rows[1], strict=True))["AUROC (mean of clients)"] == "—"
    rounds = next(s for s in sections(material, "x") if s.id == "f0-rounds")
    assert [line.name for line in rounds.charts[0].series] == ["fedrep"]


def test_what_is_known_of_metrics_without_pytorch_is_true():
    assert {name for name in METRICS if Headline(name).lower_is_better} == {
        name for name, metric in METRICS.items() if metric.lower_is_better
    }
    shares = {name for name, metric in METRICS.items() if metric.bounds == (0.0, 1.0)}
    assert {name for name in METRICS if Headline(name).unit == "%"} == shares
