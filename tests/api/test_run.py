"""One door: a run from Python has the folder, the resume and the results of one from the command line."""

from __future__ import annotations

import dataclasses
import json
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor as ft
import fedtailor.api.run as run_module
from fedtailor.experiment.lock import locked
from fedtailor.experiment.run import carry_out
from fedtailor.experiment.run_folder import read_lines

QUICK = {"rounds": 3, "batch": 4, "checkpoint_every": 1, "engine": "inline"}


class Mine(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(5, hidden)
        self.classifier = nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.relu(self.body(x)))


@pytest.fixture
def named() -> ft.Federation:
    rng = np.random.default_rng(3)
    samples = [(rng.normal(size=(12, 5)).astype(np.float32), rng.integers(0, 3, 12)) for _ in range(3)]
    return ft.Federation.from_clients(dict(zip(("north", "south", "west"), samples, strict=True)))


def numbers(folder) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds_")} for r in read_lines(folder / "metrics.jsonl")]


def interrupt_after(round: int):
    def interrupt(record):
        if record["round"] == round:
            raise KeyboardInterrupt

    return interrupt


def interrupted(federation, net, path, **options) -> None:
    with pytest.raises(KeyboardInterrupt):
        ft.run(federation, "fedrep", net=net, out=path, callbacks=[interrupt_after(2)], **{**QUICK, **options})


def test_a_run_has_a_folder_and_everything_to_look_at(named, tmp_path, rendered):
    with ft.run(named, ft.FedRep(head_epochs=2), net=Mine(), head="classifier", out=tmp_path / "a", **QUICK) as run:
        assert run.state == "finished"
        assert [r["round"] for r in run.metrics] == [1, 2, 3]
        assert list(run.table()["method"]) == ["fedrep"]
        assert run.plot(tmp_path / "p.png").stat().st_size > 5000
        assert "<title>" in run.report(tmp_path / "r.html").read_text()
        assert isinstance(run.personal("north").module, Mine)
    assert repr(run).startswith(
        f"Run '{tmp_path}/a': fedrep (head_epochs=2) on 3 clients, finished, round 3 of 3, mean acc"
    )
    assert "<table" in run._repr_html_()
    assert run.config.method == ft.FedRep(head_epochs=2)


def test_the_same_run_from_both_doors_has_the_same_numbers(fedtailor, tmp_path):
    words = ["rounds=2", "clients=4", "net=mlp", "method.head_epochs=2", "engine=inline"]
    fedtailor("run", *words, "--out", tmp_path / "typed")
    ft.run("digits", "fedrep:head_epochs=2", net="mlp", rounds=2, clients=4, engine="inline", out=tmp_path / "called")
    assert numbers(tmp_path / "typed") == numbers(tmp_path / "called")
    assert (tmp_path / "typed" / "config.toml").read_text() == (tmp_path / "called" / "config.toml").read_text()
    assert json.loads((tmp_path / "typed" / "status.json").read_text())["command"].startswith("fedtailor run rounds=2")


def test_the_same_call_again_does_nothing_more_and_another_is_refused(named, tmp_path):
    ft.run(named, "fedavg", out=tmp_path / "a", **QUICK)
    written = (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns
    assert ft.run(named, "fedavg", out=tmp_path / "a", **{**QUICK, "engine": "auto"}).nothing_left
    assert (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns == written
    with pytest.raises(ft.FedTailorError, match=r"other settings \(lr\)"):
        ft.run(named, "fedavg", out=tmp_path / "a", **{**QUICK, "lr": 0.2})


def test_what_was_made_in_python_is_given_again_and_recognised(named, federation, fedtailor, tmp_path):
    torch.manual_seed(1)
    net = Mine()
    ft.run(named, "fedrep", net=net, out=tmp_path / "whole", callbacks=[], **QUICK)
    interrupted(named, net, tmp_path / "parts")
    run = ft.load(tmp_path / "parts")
    assert run.state == "interrupted"
    with pytest.raises(ft.FedTailorError, match=r"were made in Python.*resume\(federation=…, net=…\)"):
        run.resume()
    told = " ".join(fedtailor("run", "--resume", tmp_path / "parts", code=2).split())
    assert "The federation and the net of this run were made in Python: give them again with ft.load(" in told
    with pytest.raises(ft.FedTailorError, match="What differs: number of training samples, number of test samples, cl"):
        run.resume(federation=federation, net=net)
    with pytest.raises(ft.FedTailorError, match="What differs: parameters, shapes"):
        run.resume(federation=named, net=Mine(hidden=5))
    run.resume(federation=named, net=Mine())  # other initial weights: those of the run are in its folder
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    assert "mean accuracy of clients, rounds 1 to 3" in fedtailor("show", tmp_path / "parts")
    assert "Report:" in fedtailor("report", tmp_path / "parts")


def test_one_changed_sample_is_another_federation(named, tmp_path):
    interrupted(named, "mlp", tmp_path / "a")
    x = named.clients[1].train.x
    x[0, 0] += 1
    with pytest.raises(ft.FedTailorError, match="What differs: samples"):
        ft.load(tmp_path / "a", federation=named)
    x[0, 0] -= 1
    named.clients[1].train.y[0] = (named.clients[1].train.y[0] + 1) % 3
    with pytest.raises(ft.FedTailorError, match="What differs: labels"):
        ft.load(tmp_path / "a", federation=named)


def test_damaged_initial_weights_are_noticed(named, tmp_path):
    net = Mine()
    interrupted(named, net, tmp_path / "a")
    (tmp_path / "a" / "net.safetensors").unlink()
    with pytest.raises(ft.FedTailorError, match="are missing or damaged"):
        ft.load(tmp_path / "a").resume(federation=named, net=Mine())
    assert ft.load(tmp_path / "a").resume(federation=named, net=net).state == "finished"


def test_a_run_that_names_data_and_net_resumes_without_arguments(tmp_path):
    interrupted("digits", "mlp", tmp_path / "a", clients=3)
    run = ft.load(tmp_path / "a").resume()
    assert (run.state, len(run.metrics)) == ("finished", 3)
    with pytest.raises(ft.FedTailorError, match=r"reads its data itself \(digits\)"):
        run.resume(federation=run.simulation.federation)


def test_personal_models_of_a_loaded_run_are_those_it_saved(named, tmp_path):
    method = ft.FedAvgFT(ft_epochs=2)  # closing steps change the models after the last checkpoint
    run = ft.run(named, method, net=Mine(), out=tmp_path / "a", **QUICK)
    again = ft.load(tmp_path / "a", net=Mine())
    for name in ("north", "west"):
        ours, theirs = (r.personal(name).module.state_dict() for r in (run, again))
        assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_what_cannot_be_asked_for_is_refused_in_words(named, tmp_path):
    with pytest.raises(ft.FedTailorError, match=r"Unknown key 'roundz'. Did you mean 'rounds'"):
        ft.run(named, roundz=3, out=tmp_path / "a")
    with pytest.raises(ft.FedTailorError, match="has its clients already"):
        ft.run(named, clients=3, out=tmp_path / "a")
    with pytest.raises(ft.FedTailorError, match="head=… names a submodule"):
        ft.run(named, head="fc", out=tmp_path / "a")
    with pytest.raises(ft.FedTailorError, match="seeds=3"):
        ft.compare(named, ["local"], seed=3, out=tmp_path / "a")
    for methods, seeds in (([], 1), (["local"], 0), (["local"], [])):
        with pytest.raises(ft.FedTailorError, match="at least one method and one seed"):
            ft.compare(named, methods, seeds=seeds, out=tmp_path / "a")
    with pytest.raises(
        ft.FedTailorError, match="federation must be a Federation or a data set's name, but is of type NoneType"
    ):
        ft.run(None, "local", out=tmp_path / "a")
    with pytest.raises(ft.FedTailorError, match=r"net is the class Mine: give an instance, Mine\(…\)"):
        ft.run(named, "local", net=Mine, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_metric_that_is_undefined_everywhere_is_named_when_there_is_nothing_to_show(tmp_path):
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    parts = {name: (x, x[:, i] > 0, x[:3], np.zeros(3, bool)) for i, name in enumerate(("north", "west"))}
    federation = ft.Federation.from_clients(parts)  # one class alone is tested on
    run = ft.run(federation, "local", metrics=["auroc"], select_by="auroc", out=tmp_path / "a", **QUICK)
    assert run.state == "finished"
    with pytest.raises(ft.FedTailorError, match="has no value of AUROC, which is undefined at every client"):
        run.table()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: ft.FedRep(head_epochs=-3), "method.head_epochs = -3 is not allowed"),
        (lambda: ft.Protocol(join=3.0), "join = 3.0 is not allowed"),
        (lambda: ft.Protocol(join=(0.5, 0.1)), "join = .* is not allowed"),
        (lambda: ft.Protocol(rounds=-1), "rounds = -1 is not allowed"),
        (lambda: ft.Protocol(augment="flop"), "augment = 'flop' is not allowed"),
    ],
)
def test_options_are_checked_where_they_are_given(wrong, told):
    with pytest.raises(ft.FedTailorError, match=told):
        wrong()


def test_a_comparison_has_one_table_and_is_loaded_again(named, tmp_path):
    study = ft.compare(named, ["local", ft.FedAH(eta_w=0.5)], seeds=2, out=tmp_path / "s", **{**QUICK, "rounds": 1})
    assert [run.path.name for run in study] == ["local-s0", "local-s1", "fedah-eta_w-0.5-s0", "fedah-eta_w-0.5-s1"]
    assert list(study.table()["method"]) == ["local", "fedah"]
    assert study["fedah-eta_w-0.5-s1"].config.method == ft.FedAH(eta_w=0.5)
    assert (tmp_path / "s" / "table.csv").exists()
    again = ft.load(tmp_path / "s")
    assert isinstance(again, ft.Study)
    assert len(again) == 4
    assert repr(again).startswith(f"Study '{tmp_path}/s': 4 runs, finished")
    assert "<title>" in again.report().read_text()


@pytest.mark.parametrize("typed", ["fedavg-ft", "FedAvg+FT", "fedavg_ft", ft.methods.methods.find("fedavg-ft")()])
def test_a_method_is_called_by_its_registered_name_however_it_was_typed(typed, tmp_path):
    from fedtailor.api.study import plan

    assert list(plan({"clients": 4, "net": "mlp"}, [typed], [0], tmp_path)) == [tmp_path / "fedavg-ft-s0"]


def test_a_method_in_a_file_is_called_by_its_registered_name(tmp_path):
    from fedtailor.api.study import plan

    (tmp_path / "my file.py").write_text(
        "import fedtailor as ft\nfrom dataclasses import dataclass\n"
        '@ft.methods.register("mine")\n@dataclass(frozen=True)\nclass Mine(ft.FedAvg):\n    """Mine."""\n'
    )
    try:
        plans = plan({"clients": 4, "net": "mlp"}, [f"{tmp_path / 'my file.py'}:keep=head"], [0], tmp_path)
        assert list(plans) == [tmp_path / "mine-keep-head-s0"]
    finally:
        ft.methods.methods.classes.pop("mine", None)
        ft.methods.methods.aliases.pop("mine", None)


def test_an_alias_is_suggested_by_its_registered_name():
    with pytest.raises(ft.FedTailorError, match="Did you mean 'heart'"):
        ft.methods.methods.find("heart-pfll")


def test_all_methods_of_a_comparison_get_the_same_data_where_one_needs_some_at_the_server(tmp_path):
    from fedtailor.api.study import plan

    plans = plan({"clients": 4}, ["fedavg", "perada"], [0], tmp_path)
    assert {config.server_share for config in plans.values()} == {0.1}
    sizes = [[len(c.train) for c in config.federation().clients] for config in plans.values()]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("method", sorted(ft.methods.methods.classes))
def test_every_method_runs_by_its_name_alone(method, tmp_path, caplog):
    small = ["rounds=1", "clients=4", "data.fraction=0.1", "engine=inline", "save_models=false"]
    options = {option.name for option in dataclasses.fields(ft.methods.methods.classes[method])}
    short = [f"method.{name}=1" for name in ("akt_steps", "pgd_steps", "ft_epochs") if name in options]
    simulation = carry_out(ft.Config.load(words=[f"method={method}", *small, *short]), tmp_path / "a")
    assert simulation.round == 1
    assert (
        "needs proxy samples at the server: 18 samples (10 %) are set aside" in caplog.text
    ) == simulation.method.needs_proxy
    assert not any("diverged" in record for record in simulation.metrics)


def squared_error(y, outputs):
    return float(((outputs.argmax(1) - y) ** 2).mean())


squared_error.lower_is_better = True


def test_a_run_with_a_metric_of_ones_own_is_loaded_and_resumed_with_it(named, tmp_path):
    stopped = []

    def once(record):
        if not stopped:
            stopped.append(record)
            raise KeyboardInterrupt

    options = {"rounds": 3, "engine": "inline", "metrics": [squared_error], "select_by": "squared_error"}
    whole = ft.run(named, "fedavg", net="mlp", out=tmp_path / "whole", callbacks=[], **options)
    with pytest.raises(KeyboardInterrupt):
        ft.run(named, "fedavg", net="mlp", out=tmp_path / "a", callbacks=[once], checkpoint_every=1, **options)
    run = ft.load(tmp_path / "a", federation=named)
    assert "interrupted" in repr(run)
    with pytest.raises(ft.FedTailorError, match="is a Python function"):
        run.resume(callbacks=[])
    run.resume(metrics=[squared_error], callbacks=[])
    column = "squared_error_mean"
    assert [r[column] for r in run.metrics] == [r[column] for r in whole.metrics]
    assert run.results[0].metric.lower_is_better  # reports rank it so, too
    assert whole.metrics[-1]["best_squared_error"] == min(r["squared_error"] for r in whole.metrics)


def test_pictures_wait_for_another_process_that_draws(tmp_path, federation):
    run = ft.run(federation, "fedavg", net="mlp", rounds=1, out=tmp_path / "a", callbacks=[])
    (tmp_path / "a" / "accuracy.png").unlink()
    holding = threading.Event()

    def hold() -> None:
        with locked(tmp_path / "a"):
            holding.set()
            time.sleep(0.3)

    other = threading.Thread(target=hold)
    other.start()
    holding.wait()
    began = time.monotonic()
    run.draw(fresh=False)
    assert time.monotonic() - began > 0.2
    assert (tmp_path / "a" / "accuracy.png").exists()
    other.join()


@pytest.mark.parametrize("ends_in", ["logged_picture", "plot"])
def test_a_run_that_ended_while_it_drew_has_all_pictures_after_the_next_try(tmp_path, federation, monkeypatch, ends_in):
    def draw() -> None:
        ft.run(federation, "fedsimsup", net="mlp", rounds=1, out=tmp_path / "a", callbacks=[])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module if ends_in == "logged_picture" else ft.Run, ends_in, killed)
        with pytest.raises(KeyboardInterrupt):
            draw()
    draw()
    assert (tmp_path / "a" / "logged.png").exists()
    assert (tmp_path / "a" / "accuracy.png").exists()


def test_a_run_of_a_comparison_predicts_after_its_workers_have_ended(federation, tmp_path):
    study = ft.compare(
        federation, ["fedrep"], rounds=1, engine="processes", workers=2, out=tmp_path / "s", callbacks=[]
    )
    x = federation.clients[0].test.x.numpy()
    assert np.array_equal(
        study["fedrep-s0"].personal(0).predict(x), ft.load(study.path / "fedrep-s0").personal(0).predict(x)
    )
