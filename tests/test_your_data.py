"""The walk through docs/your-data.md, every command of it, line by line."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

PAGE = (Path(__file__).parents[1] / "docs" / "your-data.md").read_text()
BLOCK = re.compile(r"```(python|sh|text)\n(.*?)```", re.DOTALL)


def test_every_command_of_the_page_does_what_it_says(fedtailor, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    said, known = "", {}
    blocks = BLOCK.findall(PAGE)
    for i, (kind, block) in enumerate(blocks):
        if kind == "text":
            assert " ".join(block.split()) in " ".join(said.split())
        elif kind == "python" and block.startswith("# make_patients.py"):
            Path("make_patients.py").write_text(block)
        elif kind == "python":
            exec(block, known)
        else:
            wrong = i + 1 < len(blocks) and blocks[i + 1][1].startswith("Error:")
            caplog.clear()
            said = "".join(command(line, fedtailor, 2 if wrong else 0) for line in block.splitlines()) + caplog.text
    table = pd.read_csv("runs/first/clients.csv").set_index("name")
    assert table.loc["east"].test_samples == 0
    assert np.isnan(table.loc["east"].accuracy)
    assert min(table.loc["north"].accuracy, table.loc["south"].accuracy) > 0.75
    here, there = pd.read_csv("predictions.csv"), pd.read_csv("elsewhere.csv")
    assert list(here.columns) == ["row", "prediction", "readmitted", "well"]
    assert here.prediction.tolist() == known["labels"].tolist() == there.prediction.tolist()
    assert np.allclose(there[["readmitted", "well"]], known["probabilities"], rtol=0, atol=1e-6)
    card = Path("models/east/README.md").read_text()
    assert "This client has no test samples" in card
    assert "Column 'country' is left out: every row has the same value ('DE')." in card


def command(line: str, fedtailor, code: int) -> str:
    program, *words = shlex.split(line)
    if program == "fedtailor":
        return fedtailor(*words, code=code)
    assert program == "python"
    if words == ["make_patients.py"]:
        runpy.run_path("make_patients.py")
        return ""
    assert words[2] == ">"
    done = subprocess.run([sys.executable, *words[:2]], capture_output=True, text=True, check=True, env={**os.environ})
    Path(words[3]).write_text(done.stdout)
    return done.stdout
