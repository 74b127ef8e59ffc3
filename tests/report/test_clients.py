"""Each client by name: what it holds, how it fares alone and federated, and how sure the difference is."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedtailor.analysis.groups import by_method
from fedtailor.analysis.results import read_results
from fedtailor.api.results import Results
from fedtailor.experiment.headline import Headline
from fedtailor.report.clients import all_clients, client_picture, metric_picture
from fedtailor.report.interactive import plotly_chart
from fedtailor.report.material import load_material
from fedtailor.report.sections import sections
from fedtailor.report.sheets import as_rich

NAMES = ["Ulm", "Bonn", "Köln"]
NATURAL = ("data=table", "data.path=x.csv", "data.client=who", "data.label=y", "clients=0")
TESTED = (10, 100, 400)


@pytest.fixture
def study(make_run, tmp_path):
    """Ulm gains 20 points on 10 samples, Bonn stays, Köln loses 10 points on 400."""
    make_run("l", "method=local", clients=[0.8, 0.7, 0.9], names=NAMES, tested=TESTED, accuracy=[0.8])
    make_run("r", "method=fedrep", clients=[1.0, 0.7, 0.8], names=NAMES, tested=TESTED, accuracy=[0.83])
    make_run("a", "method=fedavg", clients=[0.2, 0.3, 0.1], names=NAMES, tested=TESTED, accuracy=[0.2])
    return tmp_path


def clients_of(folder, metric="accuracy", baseline=""):
    return all_clients(by_method(read_results(folder)), Headline(metric), baseline)


def test_gains_and_losses_against_training_alone(study):
    best, other = clients_of(study)
    assert (best.method, best.baseline, other.method) == ("fedrep", "local", "fedavg")
    sheet = best.sheet()
    assert sheet.header == ["client", "train", "test", "local", "fedrep", "difference"]
    assert [row[:3] for row in sheet.rows] == [("Ulm", "30", "10"), ("Bonn", "300", "100"), ("Köln", "1,200", "400")]
    assert sheet.rows[0][3:] == ("80.0 [49,94]", "100.0 [72,100]", "+20.0 [-11,51]")
    assert sheet.rows[2][5] == "-10.0 [-14.9,-5.1]"
    assert sheet.notes[0] == (
        "With fedrep, 1 of 3 clients gain over local and 1 lose; 0 gain and 1 lose by more than chance."
    )


def test_another_baseline_can_be_chosen_and_none_is_invented(study):
    (best, *_) = clients_of(study, baseline="fedavg")
    assert (best.method, best.baseline) == ("fedrep", "fedavg")
    for name in "la":
        (study / name).rename(study.parent / f"{study.name}-{name}")
    (alone,) = clients_of(study)
    assert (alone.baseline, alone.difference, alone.verdict) == ("", None, "")
    assert alone.sheet().header == ["client", "train", "test", "fedrep"]
    assert [row[0] for row in alone.sheet().rows] == ["Ulm", "Köln", "Bonn"]  # the best first


@pytest.mark.parametrize("seeds", [1, 2])
def test_other_metrics_have_intervals_over_seeds_or_none_and_say_so(make_run, tmp_path, seeds):
    for seed in range(seeds):
        for method, shift in (("local", 2.0), ("fedrep", 0.0)):
            words = (f"method={method}", f"seed={seed}", *NATURAL)
            values = [shift + 4 + seed, shift + 3 + seed * shift]
            make_run(f"{method}{seed}", *words, clients=values, accuracy=[shift + 3], metric="rmse", tested=(9, 9))
    (found,) = clients_of(tmp_path, "rmse")
    reach = stats.t.ppf(0.975, 1) * np.sqrt(0.5) / np.sqrt(2)
    if seeds == 2:
        assert (found.own.low[0], found.own.high[0]) == pytest.approx((4.5 - reach, 4.5 + reach))
        assert found.difference.high[0] == found.difference.low[0] == -2  # each seed alike: pairs of seeds are compared
        gap = stats.t.interval(0.95, 1, loc=-3, scale=stats.sem([-2, -4]))
        assert (found.difference.low[1], found.difference.high[1]) == pytest.approx(gap)
        assert found.sheet().notes[1].startswith("Mean of seeds 0, 1.")
        assert "over seeds" in found.sheet().notes[-1]
    else:
        assert found.sheet().rows[0][3:] == ("6", "4", "-2")
        assert found.sheet().notes[-1].startswith("No intervals")
    assert "2 of 2 clients gain" in found.verdict  # an error that falls is a gain
    assert found.order.tolist() == ([1, 0] if seeds == 2 else [0, 1])


def test_a_method_may_be_called_as_a_column_is(make_run, tmp_path):
    make_run("a", config={"method": {"name": "mine/test.py"}}, clients=[0.5], names=["x"], tested=(8,))
    (found,) = clients_of(tmp_path)
    assert found.sheet().header == ["client", "train", "test", "test"]
    assert found.sheet().rows == [("x", "24", "8", "50.0 [22,78]")]


def test_an_interval_of_a_share_ends_at_its_bounds(make_run, tmp_path):
    for seed in (0, 1):
        make_run(f"a{seed}", f"seed={seed}", *NATURAL, clients=[0.5 + 0.5 * seed], metric="auroc", names=["x"])
    (found,) = clients_of(tmp_path, "auroc")
    assert found.sheet().rows[0][3] == "75.0 [0,100]"


def test_clients_of_other_seeds_are_averaged_only_if_they_are_the_same(make_run, tmp_path):
    for seed in (0, 1):
        make_run(f"d{seed}", f"seed={seed}", clients=[0.5 + seed / 10], names=["x"], tested=(10,))
        make_run(f"n{seed}", f"seed={seed}", *NATURAL, clients=[0.5 + seed / 10], names=["x"], tested=(10,))
    dealt, natural = (
        all_clients(by_method(runs), Headline())[0] for runs in load_material([tmp_path]).federations.values()
    )
    assert ([r.seed for r in dealt.runs], dealt.own.values.tolist()) == ([0], [0.5])
    assert ([r.seed for r in natural.runs], natural.own.values.tolist()) == ([0, 1], [pytest.approx(0.55)])


def test_calibration_is_shown_if_it_was_recorded(make_run, tmp_path):
    for method, errors in (("local", [0.3, 0.2]), ("fedrep", [0.1, None])):
        make_run(method, f"method={method}", clients=[0.5, 0.6], tested=(9, 9), scores={"calibration_error": errors})
    (found,) = clients_of(tmp_path)
    assert {row[0]: row[-1] for row in found.sheet().rows} == {"c0": "30.00 → 10.00", "c1": "20.00 → —"}


def test_an_unfinished_method_is_marked_and_not_taken_for_the_best(make_run, study):
    make_run("u", "method=fedper", clients=[1, 1, 1], names=NAMES, tested=TESTED, accuracy=[1.0], state="interrupted")
    assert [one.method for one in clients_of(study)] == ["fedrep", "fedavg", "fedper (unfinished)"]


def test_the_table_fits_a_terminal_and_is_in_python_too(study):
    console = Console(width=80, file=io.StringIO())
    console.print(as_rich(clients_of(study)[0].sheet()))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "100.0 [72,100]" in next(line for line in shown.splitlines() if "Ulm" in line)
    assert list(Results(study).clients()["client"]) == ["Ulm", "Bonn", "Köln"]


def test_a_long_name_leaves_room_for_the_numbers(make_run):
    run = make_run("a", clients=[0.5, 0.75], names=["University_Hospital_" * 5, "=1+1"], tested=(8, 8))
    console = Console(width=80, file=io.StringIO())
    console.print(as_rich(clients_of(run)[0].sheet()))
    assert "50.0 [22,78]" in console.file.getvalue()
    assert "75.0 [41,93]" in console.file.getvalue()


def test_the_page_has_the_table_the_picture_and_the_other_methods_folded(study):
    section = next(s for s in sections(load_material([study]), "x") if s.id == "f0-gains")
    assert [sheet.title for sheet in section.sheets] == ["Clients: fedrep against local"]
    assert [sheet.title for sheet in section.folded] == ["Clients: fedavg against local"]
    (chart,) = map(plotly_chart, section.charts)
    points, zero = chart["data"]
    assert chart["layout"]["yaxis"]["ticktext"] == ["Ulm", "Bonn", "Köln"]
    assert points["x"] == [20.0, 0.0, -10.0]
    assert points["error_x"]["arrayminus"][2] == pytest.approx(5.0, abs=0.2)
    assert zero["x"] == [0.0, 0.0]
    chosen = next(s for s in sections(load_material([study], "fedavg"), "x") if s.id == "f0-gains")
    assert chosen.sheets[0].title == "Clients: fedrep against fedavg"


def test_pictures_of_one_run_name_its_clients_and_have_whole_rounds(study, tmp_path, figures):
    metric_picture(read_results(study / "r"), tmp_path / "p.png")
    rounds, clients = figures[0].axes
    assert [label.get_text() for label in clients.get_yticklabels()] == ["Ulm", "Köln", "Bonn"]
    assert clients.lines[0].get_xdata().tolist() == [100.0, 80.0, 70.0]
    assert all(float(tick).is_integer() for tick in rounds.get_xticks())


def test_the_picture_of_gains(study, tmp_path, figures):
    assert client_picture(read_results(study), tmp_path / "p.png")
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Ulm", "Bonn", "Köln"]
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([20, 0, -10])
    assert not client_picture(read_results(study / "r"), tmp_path / "q.png")
    assert not (tmp_path / "q.png").exists()


def test_many_clients_become_a_sorted_curve(make_run, tmp_path):
    rng = np.random.default_rng(0)
    for method in ("local", "fedrep"):
        make_run(method, f"method={method}", clients=rng.uniform(size=300).tolist(), tested=[50] * 300)
    (found,) = clients_of(tmp_path)
    band, line, _zero = plotly_chart(found.chart())["data"]
    assert line["y"] == sorted(line["y"], reverse=True)
    assert band["fill"] == "toself"
