"""What a table reports of a run."""

from __future__ import annotations

import json

import pytest

from fedtailor import Config
from fedtailor.experiment.run import start
from fedtailor.papers.measures import MEASURES, MeasuredRun, rounds_to_best
from fedtailor.papers.presets import find

TINY = ["data=digits", "data.fraction=0.2", "clients=4", "partition=iid", "net=mlp", "net.hidden=[8]", "rounds=2"]


def run(folder, *overrides: str, group: str = "") -> MeasuredRun:
    config = Config.load(words=[*TINY, *overrides])
    start(config, folder)
    return MeasuredRun(folder, config, group)


def written(folder, *accuracies: float, phase: str = "round") -> MeasuredRun:
    """A run of which only the metrics exist."""
    lines = [{"round": i, "phase": phase, "accuracy": a} for i, a in enumerate(accuracies, 1)]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return MeasuredRun(folder, Config.load())


def test_best_is_the_best_round_unless_the_method_fine_tunes(tmp_path):
    assert MEASURES["best"].of(written(tmp_path, 0.2, 0.9, 0.4)) == pytest.approx(90)
    assert MEASURES["last"].of(MeasuredRun(tmp_path, Config.load())) == pytest.approx(40)
    assert MEASURES["best"].of(written(tmp_path, 0.7, 0.6, phase="finish")) == pytest.approx(60)


def test_fine_tuning_is_measured_by_its_last_epoch_whichever_epochs_are_evaluated(tmp_path):
    words = ("method=fedavg-ft", "method.ft_epochs=3")
    last, each = (run(tmp_path / e, *words, f"eval_closing={e}") for e in ("last", "each"))
    for name in ("best", "last", "last-mean"):
        assert MEASURES[name].of(last) == MEASURES[name].of(each)


def test_one_client_of_a_run_is_measured_by_its_name(tmp_path):
    (tmp_path / "labels.json").write_text(json.dumps({"clients": ["north", "south"]}))
    (tmp_path / "clients.jsonl").write_text(json.dumps({"accuracy": [0.25, 0.5]}) + "\n")
    assert MEASURES["last-client"].of(MeasuredRun(tmp_path, Config.load(), "south")) == pytest.approx(50)


def test_convergence_waits_for_a_hundred_evaluations_without_a_better_one(tmp_path):
    early = [0.1, 0.5, *[0.4] * 101, 0.9]
    assert rounds_to_best(written(tmp_path, *early)) == 2
    (tmp_path / "metrics.jsonl").unlink()
    assert rounds_to_best(written(tmp_path, 0.1, 0.5, *[0.4] * 99, 0.9)) == 102


def test_the_global_model_of_fedavg_does_as_well_as_the_personal_ones_which_it_is(tmp_path):
    found = run(tmp_path / "a", "method=fedavg")
    assert MEASURES["global"].of(found) == pytest.approx(MEASURES["last"].of(found))


def test_fedavg_sends_two_models_a_round_and_fedper_two_bodies(tmp_path):
    assert MEASURES["sent-per-round"].of(run(tmp_path / "a", "method=fedavg")) == pytest.approx(2)
    body, head = 64 * 8 + 8, 8 * 10 + 10
    assert MEASURES["sent-per-round"].of(run(tmp_path / "b", "method=fedper")) == pytest.approx(
        2 * body / (body + head)
    )


def test_trained_parameters_are_counted_without_data_or_weights():
    counts = {
        c.row: MEASURES["trained"].of(MeasuredRun(None, Config.load(words=c.parts[0].overrides)))
        for c in find("heart/table2").cells
    }
    assert counts["FedAvg-per"] == pytest.approx(11.176512 + 0.0513)  # with the head, which the paper leaves out
    assert counts["Ditto"] == pytest.approx(2 * counts["FedAvg-per"])
    assert counts["HEART-PFL"] == pytest.approx(2 * 1.459428)


def test_a_group_is_the_clients_with_its_supervisor(tmp_path):
    overrides = ("method=fedsimsup", "method.supervisor=mlp,same", "join=0.5")
    both = run(tmp_path / "a", *overrides)
    groups = both.config.method.groups(0, 4)
    assert sorted(i for members in groups.values() for i in members) == [0, 1, 2, 3]
    for name, members in groups.items():
        part = MeasuredRun(both.path, both.config, name)
        expected = sum(both.clients[i] for i in members) / len(members) if members else float("nan")
        assert MEASURES["last-mean"].of(part) == pytest.approx(expected, nan_ok=True)
