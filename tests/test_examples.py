"""The examples under examples/, each run as its README says; of the containers, what can be checked without Docker."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import fedtailor as ft
from fedtailor.deploy import PORT

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
THREE = EXAMPLES / "three_sites"


def follow(example: str, folder: Path, fedtailor, monkeypatch) -> str:
    """Carry out every line of an example's commands.sh in a copy of its folder; return what was printed."""
    shutil.copytree(EXAMPLES / example, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    lines = [line for line in Path("commands.sh").read_text().splitlines() if line and line[0] != "#"]
    assert lines.pop(0) == "set -e"
    said = ""
    for line in lines:
        program, *words = shlex.split(line)
        if program == "python":
            runpy.run_path(str(EXAMPLES / example / words[0]))
        else:
            assert program == "fedtailor"
            said += fedtailor(*words)
    return said


@pytest.mark.usefixtures("without_onnx")
def test_own_csv(fedtailor, tmp_path, monkeypatch):
    follow("own_csv", tmp_path, fedtailor, monkeypatch)
    assert pd.read_csv("runs/fedrep/clients.csv").name.tolist() == ["east", "north", "south"]
    assert len(pd.read_csv("predictions.csv")) == 2
    assert sorted(pd.read_csv("runs/comparison/table.csv").method) == ["fedavg", "fedrep", "local"]
    assert Path("report.html").exists()
    assert Path("models/north/predict.py").exists()


def test_own_module(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "own_module" / "own_module.py"))
    study = example["main"](tmp_path, rounds=5)
    said = capsys.readouterr().out
    assert len(re.findall(r"^round \d: ", said, re.MULTILINE)) == 5
    fedavg, fedrep = (study[name].metrics[-1]["accuracy_mean"] for name in ("fedavg-s0", "fedrep-s0"))
    assert fedrep > fedavg + 0.1  # sites name the same things differently
    samples = example["sensors"]()
    run = ft.load(tmp_path / "fedrep", federation=ft.Federation.from_clients(samples), net=example["Residual"](8, 3))
    x, y = samples["site 0"]
    one, other = (np.mean(run.personal(name).predict(x) == y) for name in ("site 0", "site 1"))
    assert one > other + 0.3


def test_image_folder(fedtailor, tmp_path, monkeypatch):
    said = follow("image_folder", tmp_path, fedtailor, monkeypatch)
    assert "jade" in said
    clients = pd.read_csv("runs/shapes/clients.csv")
    assert clients.name.tolist() == ["amber", "cobalt", "jade"]
    assert clients.accuracy.mean() > 0.7
    told = pd.read_csv("predictions.csv")
    assert list(told.columns) == ["row", "file", "prediction", "circle", "square"]
    assert len(told) == 2


def test_three_sites_are_made_by_the_command_of_the_page(fedtailor, tmp_path):
    page = (THREE / "README.md").read_text()
    commands = re.findall(r"^ +fedtailor (deploy init hospitals .*)$", page, re.MULTILINE)
    commands += re.findall(r"^ +docker run .* fedtailor:\S+ (deploy init hospitals .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    assert len(set(commands)) == 1
    fedtailor(*shlex.split(commands[0]), cwd=tmp_path)
    made = tmp_path / "hospitals"
    assert sorted(path.name for path in (made / "sites").iterdir()) == ["0", "1", "2"]
    site = tomllib.loads((made / "sites" / "0" / "site.toml").read_text())
    assert site["server"] == "fed.example.org:9092"
    assert tomllib.loads((made / "federation.toml").read_text())["listen"] == "0.0.0.0"


@pytest.mark.parametrize("role", ["server", "site"])
def test_compose_files(role):
    image = f"fedtailor:{ft.__version__}"
    (name, service), *others = yaml.safe_load((THREE / role / "compose.yaml").read_text())["services"].items()
    assert (name, others) == (role, [])
    assert service["image"] == image
    assert f"docker build -t {image} " in (THREE / "README.md").read_text()
    places = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[1] for volume in service["volumes"]]
    group, command, place = service["command"]
    assert (group, command) == ("deploy", {"server": "serve", "site": "site"}[role])
    assert place == places[0]
    assert service.get("ports", []) == ([f"{PORT}:{PORT}"] if role == "server" else [])
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_the_image_has_what_is_there():
    lines = (THREE / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.*)$", lines, re.MULTILINE) for word in line.split()[:-1]]
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in sent
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'\.\[(.*?)\]'", lines)
    assert wanted in extras
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
