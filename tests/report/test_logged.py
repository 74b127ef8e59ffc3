"""The picture of what a method logged: every value of server and clients, and nothing that every run has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedtailor.analysis.results import Result, read_result
from fedtailor.cli.app import app
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import start
from fedtailor.report.logged import logged_by_clients, logged_by_server, logged_picture

QUICK = [
    "data=digits",
    "data.fraction=0.1",
    "clients=4",
    "partition=iid",
    "net=mlp",
    "net.hidden=[8]",
    "save_models=false",
]


def run(tmp_path: Path, *words: str):
    simulation = start(Config.load(None, [*QUICK, *words]), tmp_path / "run")
    return simulation, read_result(tmp_path / "run")


def test_every_value_is_in_the_folder_even_of_rounds_without_evaluation(tmp_path):
    words = ("method=pgfedsplit", "method.tau=2", "rounds=7", "eval_every=5", "join=0.5")
    simulation, result = run(tmp_path, *words)
    server, clients = logged_by_server(result), logged_by_clients(result)
    assert set(server) == {"tau", "alpha_mean"}
    assert server["tau"] == {r["round"]: r["tau"] for r in simulation.metrics}
    delivered = {r["round"]: r["alpha_mean"] for r in simulation.metrics if "alpha_mean" in r}
    assert server["alpha_mean"] == delivered
    assert len(delivered) > 2
    for t, mean in delivered.items():
        alphas = [series[t] for series in clients["alpha"].values() if t in series]
        assert len(alphas) == 2
        assert np.mean(alphas) == pytest.approx(mean, abs=1e-9)
    assert len(result.clients()) == 4  # the last evaluation, though the last line may be of a round without one


@pytest.mark.parametrize("method", ["fedavg", "fedavg-ft"])
def test_a_method_that_logs_nothing_has_no_picture(tmp_path, method):
    _, result = run(
        tmp_path, f"method={method}", "rounds=2", *(["method.ft_epochs=2"] if method == "fedavg-ft" else [])
    )
    assert logged_by_server(result) == logged_by_clients(result) == {}
    assert not logged_picture(result, tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_what_clients_log_in_a_closing_step_follows_the_rounds(tmp_path):
    simulation, result = run(tmp_path, "method=tailor", "method.close_epochs=1", "rounds=2")
    expected = {i: {3: outcome.logged["prior_weight"]} for i, outcome in simulation.outcomes.items()}
    assert len(expected) == 4
    assert logged_by_clients(result) == {"prior_weight": expected}
    assert logged_picture(result, tmp_path / "p.png")


def fabricated(folder: Path, clients: int, server_names=("tau",)) -> Result:
    """Rounds 1 to 6; in the even ones client k logs share = k + round; odd clients also log 'other'."""
    rounds = range(1, 7)
    records = [{"round": t, "phase": "round", "accuracy": 0.5, **dict.fromkeys(server_names, t // 2)} for t in rounds]
    lines = [
        {
            "round": t,
            "phase": "round",
            "logged": {str(k): {"share": k + t, **({"other": 1.5} if k % 2 else {})} for k in range(clients)},
        }
        for t in rounds
        if t % 2 == 0
    ]
    config = {"method": {"name": "m"}, "data": {"name": "d"}, "seed": 0}
    (folder / "clients.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Result(folder, config, records, {}, "finished")


def test_lines_of_clients_their_mean_and_steps_of_the_server(tmp_path, figures):
    assert logged_picture(fabricated(tmp_path, 3), tmp_path / "p.png")
    share, other, tau = figures[0].axes
    assert [axes.get_title() for axes in (share, other, tau)] == ["share", "other", "tau"]
    *each, mean = share.lines
    assert [list(line.get_ydata()) for line in each] == [[2, 4, 6], [3, 5, 7], [4, 6, 8]]
    assert list(mean.get_xdata()) == [2, 4, 6]
    assert list(mean.get_ydata()) == [3, 5, 7]
    assert len(other.lines) == 2  # the one client that logged it, and the mean
    (line,) = tau.lines
    assert list(line.get_ydata()) == [0, 1, 1, 2, 2, 3]
    assert line.get_drawstyle() == "steps-post"
    assert np.array(Image.open(tmp_path / "p.png").convert("L")).std() > 5


def test_many_clients_become_a_band(tmp_path, figures):
    logged_picture(fabricated(tmp_path, 100), tmp_path / "p.png")
    share = figures[0].axes[0]
    assert len(share.lines) == 1
    (band,) = share.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(np.percentile(np.arange(100) + 2, 10))
    assert heights.max() == pytest.approx(np.percentile(np.arange(100) + 6, 90))


def test_the_servers_mean_joins_the_clients_panel_and_odd_places_stay_empty(tmp_path, figures):
    logged_picture(fabricated(tmp_path, 2, ("share_mean", "a", "b", "share")), tmp_path / "p.png")
    visible = [axes for axes in figures[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in visible] == ["share", "other", "a", "b"]
    assert len(figures[0].axes) == 6
    *_, mean, server = visible[0].lines
    assert list(mean.get_ydata()) == list(server.get_ydata()) == [0, 1, 1, 2, 2, 3]


def test_the_command_puts_it_into_the_run_folder(tmp_path):
    for method, expected in (("fedah", True), ("fedrep", False)):
        words = ["run", f"method={method}", "rounds=2", *QUICK, "--out", str(tmp_path / method)]
        output = CliRunner().invoke(app, words, catch_exceptions=False).output
        assert (tmp_path / method / "logged.png").exists() == expected
        assert ("logged.png" in output) == expected
