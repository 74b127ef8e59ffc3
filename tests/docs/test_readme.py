"""The demo ends with the numbers that README shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demos_table(fedtailor, tmp_path):
    makefile = (ROOT / "Makefile").read_text()
    command = re.findall(r"^\t\$\(BIN\)/fedtailor (compare .*)$", makefile, re.MULTILINE)[0]
    fedtailor(*shlex.split(command), cwd=tmp_path)
    table = pd.read_csv(tmp_path / "runs" / "demo" / "table.csv").set_index("method")
    rows = re.findall(
        r"^│ (\w+) +│ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert [row[0] for row in rows] == table.index.tolist()
    print(table.columns.tolist())
    for name, *numbers in rows:
        assert [f"{value:.2f}" for value in table.loc[name].iloc[:3]] == numbers
