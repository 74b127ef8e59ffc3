"""A plain installation, without any extra: what works, and what is said where a package is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedtailor as ft
from fedtailor.extras import extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
OPTIONAL = ["matplotlib", "plotly", "pyarrow", "datasets", "flwr", "ray", "onnx", "onnxscript", "optuna"]
OPTIONAL += ["mlflow", "tensorboard"]
PLAIN = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder

OPTIONAL, commands = json.load(sys.stdin)

class Plain(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in OPTIONAL else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Plain
from fedtailor.__main__ import main

answers = []
for words in commands:
    sys.argv = ["fedtailor", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    answers.append((code, said.getvalue()))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, tuple[int, str]]:
    """What commands answer, one after another in one process, where no optional package can be imported."""
    commands = {
        "run": ["run", "method=fedavg", "data=heart", "rounds=1", "--out", "a"],
        "show": ["show", "a"],
        "compare": ["compare", "local", "fedavg", "data=digits", "clients=2", "rounds=1", "--out", "c"],
        "table": ["report", "c", "--format", "md"],
        "page": ["report", "c"],
        "watch": ["watch", "c"],
        "tune": ["tune", "local", "data=heart", "rounds=1", "--budget", "1", "--out", "t"],
        "deploy": ["deploy", "init", "d", "data=heart"],
    }
    folder = tmp_path_factory.mktemp("plain")
    given = json.dumps([OPTIONAL, list(commands.values())])
    program = [sys.executable, "-c", PLAIN]
    done = subprocess.run(program, input=given, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    said = dict(zip(commands, map(tuple, json.loads(done.stdout)), strict=True))
    said["files"] = (0, "\n".join(str(path.relative_to(folder)) for path in folder.rglob("*")))
    return said


@pytest.mark.slow
def test_a_run_writes_everything_but_pictures_and_says_so_once(answers):
    code, said = answers["run"]
    assert code == 0, said
    assert " ".join(said.split()).count("Pictures are left out: they need matplotlib.") == 1
    assert "pip install 'fedtailor[report]'" in " ".join(said.split())
    assert "Run folder: a" in said
    assert "Pictures:" not in said
    files = answers["files"][1].splitlines()
    assert {"a/config.toml", "a/metrics.jsonl", "a/clients.csv", "a/labels.json", "c/table.csv"} <= set(files)
    assert not [name for name in files if name.endswith(".png")]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "compare", "table"])
def test_tables_need_no_extra(answers, command):
    code, said = answers[command]
    assert code == 0, said
    assert "fedavg" in said
    assert "pip install" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("page", "The page needs plotly, which is not installed:  pip install 'fedtailor[report]'"),
        ("watch", "The page needs plotly, which is not installed:  pip install 'fedtailor[report]'"),
        ("tune", "Tuning needs Optuna:  pip install 'fedtailor[tune]'"),
        ("deploy", "A federation over the network needs Flower:  pip install 'fedtailor[flower]'"),
    ],
)
def test_what_needs_an_extra_says_in_one_sentence_what_to_type(answers, command, needs):
    assert answers[command] == (2, f"Error: {needs}\n")


def test_in_python_a_picture_that_was_asked_for_is_an_error(federation, monkeypatch):
    for name in [name for name in sys.modules if name == "fedtailor.report.pictures"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ft.FedTailorError, match=r"A picture needs matplotlib.*fedtailor\[report\]"):
        federation.plot()


def test_the_name_of_the_missing_package_is_told():
    with (
        pytest.raises(ft.FedTailorError, match=r"^This needs nothing_like_it, which is not installed"),
        extra("x", "This"),
    ):
        import nothing_like_it.inside  # noqa: F401


def test_every_extra_that_a_message_names_is_declared_and_all_has_each():
    declared = set(PROJECT["optional-dependencies"])
    sources = [path.read_text() for path in Path(ft.__file__).parent.rglob("*.py")]
    named = {part.partition("]")[0] for text in sources for part in text.split("'fedtailor[")[1:]} - {"{name}"}
    assert named
    assert named <= declared
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(everything.removeprefix("fedtailor[").removesuffix("]").split(",")) == declared - {"all", "dev", "docs"}
