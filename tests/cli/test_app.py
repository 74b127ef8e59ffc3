"""The command as a user types it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer

from fedtailor.cli.app import app
from fedtailor.data.partition import partitions
from fedtailor.data.pool import sources
from fedtailor.methods import methods
from fedtailor.nets import nets
from fedtailor.registry import options

QUICK = ["rounds=2", "clients=4", "partition=iid", "net=mlp", "net.hidden=[8]", "save_models=false"]
COMMANDS = (
    "run",
    "compare",
    "tune",
    "recommend",
    "reproduce",
    "claims",
    "pretrain",
    "show",
    "report",
    "watch",
    "predict",
    "export",
    "onboard",
    "audit",
    "options",
    "methods",
    "datasets",
    "nets",
    "partitions",
    "data get",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_in_its_help(fedtailor, command):
    assert f"Example: fedtailor {command}" in " ".join(fedtailor(*command.split(), "--help").split())


def test_o_is_short_for_out_everywhere():
    def writing(command: click.Command) -> Iterator[click.Parameter]:
        for below in getattr(command, "commands", {}).values():
            yield from writing(below)
        yield from (p for p in command.params if {"--out", "-o", "--to"} & {*p.opts})

    found = list(writing(typer.main.get_command(app)))
    assert len(found) >= 11
    assert all({"--out", "-o"} <= {*option.opts} for option in found)


def test_the_command_says_its_version(fedtailor):
    assert fedtailor("--version").startswith(f"fedtailor {version('fedtailor')} (PyTorch {version('torch')})")


def test_run_show_and_refuse_to_overwrite(fedtailor, tmp_path, rendered):
    output = fedtailor("run", "method=fedrep", *QUICK, "--out", "a", cwd=tmp_path)
    assert "fedrep" in output
    assert "a/accuracy.png" in output
    assert (tmp_path / "a" / "accuracy.png").stat().st_size > 5000
    assert "mean accuracy of clients, rounds 1 to 2" in fedtailor("show", "a", cwd=tmp_path)
    assert "finished already" in fedtailor("run", "method=fedrep", *QUICK, "-o", "a", cwd=tmp_path)
    assert "other settings (method.name" in fedtailor("run", "method=local", *QUICK, "--out", "a", code=2, cwd=tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").touch()
    assert "is not empty" in fedtailor("run", *QUICK, "--out", "b", code=2, cwd=tmp_path)


def test_mistakes_are_told_in_words(fedtailor, tmp_path):
    assert "Did you mean 'fedrep'?" in fedtailor("run", "method=fedrepp", code=2, cwd=tmp_path)
    assert "is not a run folder" in fedtailor("run", "--resume", tmp_path, code=2)
    output = fedtailor("run", "data=cifar10", f"data.root={tmp_path}", code=2, cwd=tmp_path)
    assert "Looked for" in output
    assert "fedtailor data get cifar10" in output
    assert not (tmp_path / "runs").exists()
    assert "holds no run" in fedtailor("show", tmp_path, code=2)
    assert "whole numbers" in fedtailor("compare", "local", "--seeds", "a", code=2, cwd=tmp_path)


@pytest.mark.parametrize(
    "words", [["rnu"], ["deploy", "serv"], ["data", "gt"], ["run", "--ot"], ["run", "method=fedraep"]]
)
def test_a_suggestion_is_made_once(fedtailor, words):
    assert fedtailor(*words, code=2).count("Did you mean") == 1


def test_compare_makes_one_table_and_one_picture_and_goes_on_where_it_stopped(fedtailor, tmp_path):
    words = ("compare", "local", "fedrep", "fedrep:head_epochs=2", *QUICK, "--seeds", "0,1", "--out", tmp_path / "c")
    output = fedtailor(*words)
    assert "fedrep (head_epochs=2)" in output
    assert "±" in output
    table = (tmp_path / "c" / "table.csv").read_text().splitlines()
    assert sorted(row.split(",")[0] for row in table[1:]) == ["fedrep", "fedrep (head_epochs=2)", "local"]
    means = [float(row.split(",")[1].split(" ±")[0]) for row in table[1:]]
    assert means == sorted(means, reverse=True)
    assert "against local" in output  # each client, since they are few
    assert (tmp_path / "c" / "accuracy.png").exists()
    assert (tmp_path / "c" / "clients.png").exists()
    finished = (tmp_path / "c" / "local-s0" / "metrics.jsonl").stat().st_mtime_ns
    (tmp_path / "c" / "fedrep-s1" / "status.json").write_text('{"state": "running", "round": 1}')
    assert fedtailor(*words).splitlines()[-1] == output.splitlines()[-1]
    assert (tmp_path / "c" / "local-s0" / "metrics.jsonl").stat().st_mtime_ns == finished


def test_report_writes_a_page_or_prints_a_table(fedtailor, tmp_path):
    fedtailor("run", *QUICK, "--out", tmp_path / "a")
    assert f"Report: {tmp_path}/a/report.html" in fedtailor("report", tmp_path / "a")
    page = (tmp_path / "a" / "report.html").read_text()
    assert "<title>fedrep on digits</title>" in page
    assert "Training samples by client and class" in page  # the run says who holds which labels
    assert fedtailor("report", tmp_path / "a", "--format", "md").startswith("### digits, 4 clients, iid partition\n")
    assert fedtailor("report", tmp_path / "a", "--format", "csv").startswith("federation,method,runs,")
    assert "Table:" in fedtailor("report", tmp_path / "a", "--out", tmp_path / "t.tex")
    assert r"\toprule" in (tmp_path / "t.tex").read_text()
    assert "holds no run" in fedtailor("report", tmp_path / "a" / "checkpoints", code=2)
    assert "cannot be written" in fedtailor("report", tmp_path / "a", "--out", tmp_path / "no" / "x.md", code=2)


@pytest.mark.parametrize(
    ("command", "registry"), [("methods", methods), ("datasets", sources), ("nets", nets), ("partitions", partitions)]
)
def test_the_catalogue_lists_everything_with_meaning_and_defaults(fedtailor, command, registry):
    listing = fedtailor(command)
    for name, cls in registry.classes.items():
        assert name in listing
        assert cls.__doc__
        entry = fedtailor(command, name)
        for option in options(cls):
            assert f"{registry.kind}.{option.name}" in entry
            assert option.meaning, f"{name}.{option.name} says nothing about itself"


def test_a_run_resumes_from_the_command_line(fedtailor, tmp_path):
    fedtailor("run", *QUICK, "--out", "a", cwd=tmp_path)
    (tmp_path / "a" / "accuracy.png").unlink()
    told = fedtailor("run", "--resume", "a", cwd=tmp_path)
    assert "finished already" in told
    assert "Run folder: a" in told
    assert (tmp_path / "a" / "accuracy.png").exists()
    assert "give no overrides" in fedtailor("run", "rounds=9", "--resume", "a", code=2, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at what a process has loaded")
def test_ctrl_c_while_the_program_starts_is_one_line(tmp_path):
    command = [sys.executable, "-m", "fedtailor", "run", *QUICK, "--out", str(tmp_path / "a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():  # it is being imported
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("Stopped.\n", None)
    assert process.returncode == 130
    assert not list(tmp_path.iterdir())


def test_the_help_needs_nothing_heavy():
    script = "import sys, fedtailor.cli.app; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "numpy", "pandas", "matplotlib", "sklearn", "pydantic"]
    done = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_place_that_cannot_be_written_is_told_in_one_sentence(fedtailor, tmp_path):
    (tmp_path / "file").touch()
    told = fedtailor("run", *QUICK, "--out", tmp_path / "file" / "a", code=2)
    assert "cannot be written: Not a directory." in told
    assert "cannot be written" in fedtailor("compare", "local", *QUICK, "--out", tmp_path / "file" / "c", code=2)
    assert "cannot be written" in fedtailor("reproduce", "heart/fig6", "--out", tmp_path / "file" / "r", code=2)


def test_a_comparison_killed_before_its_first_round_goes_on(fedtailor, tmp_path):
    words = ("compare", "local", *QUICK, "--out", tmp_path / "c")
    fedtailor(*words)
    cell = tmp_path / "c" / "local-s0"
    (cell / "status.json").write_text('{"state": "running", "round": 0}')
    (cell / "metrics.jsonl").write_text("")
    (cell / "clients.jsonl").write_text("")
    shutil.rmtree(cell / "checkpoints")
    assert "local" in fedtailor(*words)
    assert len((cell / "metrics.jsonl").read_text().splitlines()) == 2


def test_reproduce_lists_plans_and_answers_a_typo(fedtailor, tmp_path):
    listing = fedtailor("reproduce", "--list")
    assert "pgfedsplit/table2" in listing
    assert "heart/fig6" in listing
    plan = fedtailor("reproduce", "fedafk/table5", "--scale", "rounds=3,columns=1", "epochs=8", "--dry-run")
    assert plan.count("rounds=3") == plan.count("epochs=8") == 4
    assert "4 cells from 4 runs. Scale: 3 rounds instead of 1000; 8 epochs instead of 1; 1 of 3 columns." in " ".join(
        plan.split()
    )
    assert "Did you mean 'heart/fig6'?" in fedtailor("reproduce", "hart/fig6", code=2, cwd=tmp_path)
    assert "Unknown key 'foo'" in fedtailor("reproduce", "heart/fig6", "foo=3", "--dry-run", code=2, cwd=tmp_path)
    assert "--scale seeds=2" in fedtailor("reproduce", "heart/fig6", "seed=3", code=2, cwd=tmp_path)


def test_names_from_a_file_cannot_command_the_terminal(fedtailor, tmp_path):
    (tmp_path / "t.csv").write_text("a,\x1b[31mb\x07\n1,2\n")
    said = fedtailor("run", "data=table", f"data.path={tmp_path / 't.csv'}", code=2)
    assert r"\x1b[31mb\x07" in said
    assert all(line.isprintable() for line in said.splitlines())
