"""Runs: their folder, and that an interrupted run ends as if it had never been interrupted."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedtailor import Config, FedTailorError
from fedtailor.engines import WorkerLost
from fedtailor.experiment.journal import Journal
from fedtailor.experiment.run import Stop, carry_out, resume, simulation_of, start
from fedtailor.experiment.run_folder import RunFolder, read_lines
from fedtailor.files import Unwritable
from fedtailor.learning.scoring import score

WORDS = [
    "rounds=7",
    "clients=5",
    "partition=iid",
    "net=mlp",
    "net.hidden=[8]",
    "join=0.6",
    "dropout=0.2",
    "checkpoint_every=2",
    "engine=inline",  # as all engines give the same numbers, the one that starts no processes
]


def config(*words: str) -> Config:
    return Config.load(words=[*WORDS, *words])


def numbers(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds_")} for r in read_lines(folder / "metrics.jsonl")]


def same_runs(a: Path, b: Path) -> bool:
    models = sorted(p.name for p in (a / "models").iterdir())
    assert models == sorted(p.name for p in (b / "models").iterdir())
    equal = all(
        (load_file(a / "models" / m)[k] == t).all() for m in models for k, t in load_file(b / "models" / m).items()
    )
    texts = all((a / f).read_text() == (b / f).read_text() for f in ("ledger.csv", "clients.csv", "clients.jsonl"))
    return equal and texts and numbers(a) == numbers(b)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    start(config(), folder)
    return folder


@pytest.fixture
def whole(uninterrupted, tmp_path) -> Path:
    """A copy of a run that nothing happened to."""
    return shutil.copytree(uninterrupted, tmp_path / "whole")


@pytest.mark.parametrize(("method", "engine"), [("fedrep", "auto"), ("fedavg-ft", "auto"), ("fedrep", "stacked")])
def test_a_run_stopped_and_resumed_ends_to_the_bit_like_one_never_stopped(tmp_path, method, engine):
    extra = [f"method={method}", f"engine={engine}"] + (["method.ft_epochs=2"] if method == "fedavg-ft" else [])
    start(config(*extra), tmp_path / "whole")
    stop = Stop()

    def watch(record):
        stop.asked = record["round"] == 3

    start(config(*extra), tmp_path / "parts", [watch], stop)
    assert json.loads((tmp_path / "parts" / "status.json").read_text())["state"] == "interrupted"
    resume(tmp_path / "parts")
    assert same_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_run_of_the_stacked_engine_goes_on_with_no_other(tmp_path):
    start(config("engine=stacked", "rounds=1"), tmp_path / "run")
    carry_out(config("engine=stacked", "rounds=1", "workers=1"), tmp_path / "run")
    with pytest.raises(FedTailorError, match="engine"):
        carry_out(config("engine=inline", "rounds=1"), tmp_path / "run")


def test_a_faster_engine_is_named_once_where_many_clients_have_a_small_net(caplog, monkeypatch):
    monkeypatch.setattr("fedtailor.engines.LONG", 0.01)
    words = ["partition=iid", "net=mlp", "data.fraction=0.2", "engine=auto", "workers=1", "rounds=2"]
    for more in (["clients=4"], ["clients=20", "net.hidden=[2000]"], ["clients=20", "engine=inline"]):
        simulation_of(Config.load(words=[*words, *more])).close()
    assert "stacked" not in caplog.text
    for _ in range(2):
        simulation_of(Config.load(words=[*words, "clients=20"])).close()
    assert caplog.text.count("engine=stacked trains many such clients as one") == 1


def test_resuming_falls_back_to_the_checkpoint_before_a_damaged_one(whole, tmp_path, caplog):
    shutil.copytree(whole, tmp_path / "damaged")
    newest = max((tmp_path / "damaged" / "checkpoints").iterdir())
    (newest / "clients.safetensors").write_bytes(b"\0" * 10)
    shutil.rmtree(tmp_path / "damaged" / "models")
    resume(tmp_path / "damaged")
    assert f"{newest.name} is damaged" in caplog.text
    assert same_runs(whole, tmp_path / "damaged")


def test_without_any_checkpoint_a_resumed_run_starts_over(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    resume(tmp_path / "bare")
    assert same_runs(whole, tmp_path / "bare")


def stamps(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def killed(folder: Path) -> Path:
    """The folder as a kill after its last checkpoint would have left it."""
    shutil.rmtree(folder / "models")
    (folder / "clients.csv").unlink()
    (folder / "status.json").write_text('{"state": "running", "round": 6}')
    return folder


def as_first_version(folder: Path) -> Path:
    """The folder as the first versions made it: without a mark, a lock or a checksum of a json file."""
    (folder / ".lock").unlink()
    for path in [folder / "versions.json", folder / "status.json", *folder.glob("checkpoints/*/checkpoint.json")]:
        read = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in read.items() if k not in ("self", "files", "config_sha256")}))
    return folder


@pytest.mark.parametrize("version", [lambda folder: folder, as_first_version])
def test_a_finished_run_is_left_as_it_is(tmp_path, version):
    start(config("method=fedavg-ft", "method.ft_epochs=2"), tmp_path / "run")
    before = stamps(version(tmp_path / "run"))
    assert resume(tmp_path / "run") is None
    assert stamps(tmp_path / "run") == before


@pytest.mark.parametrize("version", [lambda folder: folder, as_first_version])
@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.jsonl", "ledger.csv"])
def test_a_run_whose_files_lost_lines_goes_back_says_so_and_ends_the_same(whole, tmp_path, caplog, name, version):
    shutil.copytree(whole, tmp_path / "lost")
    lines = version(killed(tmp_path / "lost")).joinpath(name).read_text().splitlines(keepends=True)
    half = lines[: len(lines) // 2]
    for kept in (half, half + lines[len(lines) // 2 + 1 :]):  # the rest gone, or one line of the middle
        caplog.clear()
        shutil.copytree(tmp_path / "lost", tmp_path / "again")
        (tmp_path / "again" / name).write_text("".join(kept))
        resume(tmp_path / "again")
        assert f"'{name}' does not hold what it held after round 6: going back" in caplog.text
        assert same_runs(whole, tmp_path / "again")
        shutil.rmtree(tmp_path / "again")


def test_one_digit_changed_is_noticed_and_the_run_goes_back_before_it(whole, tmp_path, caplog):
    shutil.copytree(whole, tmp_path / "other")
    metrics = killed(tmp_path / "other") / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"accuracy": 0.', '"accuracy": 1.', 1)  # of round 7, after the checkpoint of round 6
    metrics.write_text("".join(lines))
    resume(tmp_path / "other")
    assert caplog.text.count("going back") == 1
    assert same_runs(whole, tmp_path / "other")


def test_a_finished_run_whose_files_were_changed_is_told_and_not_touched(tmp_path):
    start(config("rounds=2"), tmp_path / "run")
    with (tmp_path / "run" / "ledger.csv").open("a") as file:
        file.write("9,9,up,body,1\n")
    before = stamps(tmp_path / "run")
    with pytest.raises(FedTailorError, match=r"is finished, but its ledger.csv is not what it was"):
        resume(tmp_path / "run")
    assert stamps(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["labels.json", "description.json", "versions.json"])
def test_a_changed_description_of_the_data_is_told_in_a_finished_run(tmp_path, name):
    start(config("rounds=2"), tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_text(path.read_text().replace("1", "7", 1))
    with pytest.raises(FedTailorError, match=rf"is finished, but its {name} is not what it was"):
        resume(tmp_path / "run")


def test_an_old_checkpoint_that_a_kill_left_goes_with_the_resume(tmp_path):
    start(config("rounds=3", "checkpoint_every=1"), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    rounds = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert len(rounds) == 2
    left = killed(tmp_path / "killed") / "checkpoints" / "round-000001"  # killed before it was deleted
    shutil.copytree(tmp_path / "killed" / "checkpoints" / rounds[0], left, dirs_exist_ok=True)
    resume(tmp_path / "killed")
    assert sorted(path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()) == rounds


def test_a_run_does_not_go_on_with_other_data(tmp_path, caplog):
    rows = ["site,a,sex,y"] + [f"s{i % 2},{i % 7},{'mf'[i % 2]},{i % 3}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    table = ["data=table", f"data.path={tmp_path / 't.csv'}", "data.client=site", "data.label=y", "rounds=2"]
    start(Config.load(words=table), tmp_path / "run")
    folder = killed(tmp_path / "run")
    (folder / "description.json").write_text("{")
    resume(folder)
    assert "description.json' was damaged: it is written anew" in caplog.text
    path, text = folder / "description.json", (folder / "description.json").read_text()
    path.write_text(re.sub(r"(\.\d{6,})", r"\g<1>0001", text, count=1))  # too small a change for the number to differ
    assert path.read_text() != text
    resume(killed(folder))
    assert path.read_text() == text
    (tmp_path / "t.csv").write_text("\n".join(rows).replace("m,", "x,"))
    with pytest.raises(FedTailorError, match="began with: its column 'sex' has the value 'x', where 'f', 'm'"):
        resume(killed(folder))


def test_a_run_killed_between_its_last_checkpoint_and_its_end_has_its_table_and_models(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "killed")
    (killed(tmp_path / "killed") / "labels.json").unlink()
    (tmp_path / "killed" / "versions.json").write_text("{")
    resume(tmp_path / "killed")
    assert same_runs(whole, tmp_path / "killed")  # the table has the scores of a run not in memory
    for name in ("labels.json", "versions.json"):
        assert (tmp_path / "killed" / name).read_text() == (whole / name).read_text()


def test_a_config_that_was_changed_is_refused_unless_it_changes_no_number(tmp_path):
    start(config("rounds=2"), tmp_path / "run")
    toml = killed(tmp_path / "run") / "config.toml"
    text = toml.read_text()
    toml.write_text(text.replace("lr = 0.", "lr = 1."))
    with pytest.raises(FedTailorError, match="is not what this run began with"):
        resume(tmp_path / "run")
    toml.write_text(text.replace('engine = "inline"', 'engine = "auto"'))
    assert resume(tmp_path / "run").finished


def test_a_folder_that_cannot_be_written_is_told_before_any_data_is_read(tmp_path):
    (tmp_path / "file").touch()

    def build(config):
        raise AssertionError("data was read")

    with pytest.raises(
        FedTailorError, match=r"cannot be written: Not a directory\. Nothing has begun: choose another --out"
    ):
        start(config(), tmp_path / "file" / "run", build=build)


def test_two_who_resume_one_folder_do_not_mix_their_lines(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(killed(tmp_path / "run") / "checkpoints")

    def watch(record):
        with pytest.raises(FedTailorError, match=f"is being carried out by process {os.getpid()} on"):
            resume(tmp_path / "run")

    resume(tmp_path / "run", [watch])
    assert same_runs(whole, tmp_path / "run")


def test_a_disk_that_is_full_is_told_and_the_run_ends_the_same_once_there_is_room(whole, tmp_path, monkeypatch):
    append = Journal.append

    def full(journal, text):
        if journal.path.name == "clients.jsonl" and '"round": 4' in text:
            append(journal, text[:20])
            raise Unwritable(f"'{journal.path}' cannot be written: No space left on device.")
        append(journal, text)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full)
        with pytest.raises(FedTailorError, match=r"No space left on device.*fedtailor run --resume"):
            start(config(), tmp_path / "full")
    resume(tmp_path / "full")
    assert same_runs(whole, tmp_path / "full")


def test_the_folder_holds_all_of_a_run(tmp_path, rendered):
    simulation = start(config("method=fedper"), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    records = folder.records()
    assert [r["round"] for r in records] == list(range(1, 8))
    wanted = {"accuracy", "accuracy_mean", "best_accuracy", "loss", "spread", "worst_decile", "bytes_up", "bytes_down"}
    assert wanted | {"seconds_training", "seconds_evaluation", "seconds_communication"} <= set(records[0])
    assert (folder.path / "labels.png").stat().st_size > 1000
    rows = (folder.path / "ledger.csv").read_text().splitlines()[1:]
    up = sum(int(r.split(",")[4]) for r in rows if ",up," in r)
    assert up == sum(r["bytes_up"] for r in records)
    model, module = load_file(folder.models / "client-00002.safetensors"), simulation.personal(2)
    module.load_state_dict(model)  # names and shapes are the module's own
    assert json.loads((folder.path / "versions.json").read_text())["torch"]


def test_a_runs_own_config_runs_again_to_the_same_numbers(tmp_path):
    start(config(), tmp_path / "first")
    start(Config.load(tmp_path / "first" / "config.toml"), tmp_path / "second")
    assert same_runs(tmp_path / "first", tmp_path / "second")


def launch(folder: Path, *words: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "run",
        *WORDS,
        "rounds=30",
        "engine=auto",
        *words,
        "--out",
        str(folder),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_round(folder: Path, round: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(read_lines(folder / "metrics.jsonl")) >= round:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


@pytest.mark.slow
def test_kill_9_and_resume(tmp_path):
    process = launch(tmp_path / "killed")
    wait_for_round(tmp_path / "killed", 9)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 99, "pha')  # a line cut short
    resume(tmp_path / "killed")
    start(config("rounds=30"), tmp_path / "whole")
    assert same_runs(tmp_path / "whole", tmp_path / "killed")


def test_a_run_that_loses_a_worker_goes_on_from_its_checkpoint_with_a_new_one(whole, tmp_path, caplog):
    killed = []

    def watch(record):
        if record["round"] == 5 and not killed:
            killed.extend(multiprocessing.active_children())
            killed[0].kill()

    start(config("engine=processes", "workers=2"), tmp_path / "lost", [watch])
    assert "killed by SIGKILL in round 6" in caplog.text
    assert json.loads((tmp_path / "lost" / "status.json").read_text())["state"] == "finished"
    assert same_runs(whole, tmp_path / "lost")


def test_a_run_that_keeps_losing_workers_ends_and_says_how_to_carry_on(tmp_path):
    def watch(record):
        if record["round"] == 3:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(WorkerLost, match=r"too often.*fedtailor run --resume"):
        start(config("engine=processes", "workers=2"), tmp_path / "lost", [watch])
    assert json.loads((tmp_path / "lost" / "status.json").read_text())["state"] == "failed"


@pytest.mark.slow
def test_ctrl_c_leaves_a_valid_folder(tmp_path):
    process = launch(tmp_path / "run", "rounds=2000")
    wait_for_round(tmp_path / "run", 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "fedtailor run --resume" in output
    assert "Traceback" not in output
    records = RunFolder.open(tmp_path / "run").records()
    assert [r["round"] for r in records] == list(range(1, len(records) + 1))
    assert (tmp_path / "run" / "accuracy.png").exists()


@pytest.mark.parametrize("every", [1, 0])
def test_models_that_were_scored_right_after_training_are_saved_so_and_made_again(every, tmp_path):
    def models(folder):
        return {file.name: file.read_bytes() for file in sorted((folder / "models").glob("*.safetensors"))}

    few = ("method=pgfedsplit", "rounds=2", "clients=3", "data.fraction=0.2", f"checkpoint_every={every}")
    simulation = start(config(*few, "join=1.0", "engine=inline"), tmp_path / "a")
    for i, client in enumerate(simulation.federation.clients):
        assert (
            score(simulation.personal(i), simulation.worker.samples(client.test, (i, "test"))) == simulation.scores[i]
        )
    saved = models(tmp_path / "a")
    (tmp_path / "a" / "models" / "client-00001.safetensors").unlink()
    assert resume(tmp_path / "a") is not None
    assert models(tmp_path / "a") == saved
