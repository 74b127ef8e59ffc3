"""The worked examples of docs/write-a-method.md and docs/your-model.md, followed to the letter in an empty folder elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedtailor as ft

ROOT = Path(__file__).parents[1]
QUICK = ("rounds=2", "clients=4", "partition=iid", "data.fraction=0.2")

pytestmark = pytest.mark.usefixtures("registries")


def written(guide: str, folder: Path) -> list[str]:
    """Write the files of a guide into a folder, and return their names."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / guide).read_text(), re.DOTALL)
    for name, code in blocks:
        (folder / name).write_text(code)
    return [name for name, _ in blocks]


def commands(guide: str) -> list[list[str]]:
    """Return the commands of a guide that name a file of its own."""
    return [line.split()[1:] for line in re.findall(r"^fedtailor .*\.py.*$", (ROOT / guide).read_text(), re.MULTILINE)]


def test_a_method_in_one_file(fedtailor, tmp_path):
    assert written("docs/write-a-method.md", tmp_path) == ["fednudge.py", "test_fednudge.py"]
    only = {"PYTHONPATH": str(Path(str(ft.__file__)).parents[1])}  # the package, and nothing of this repository
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, **only},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
    told, compared, *_ = commands("docs/write-a-method.md")
    assert "share of the averaged head" in " ".join(fedtailor(*told, cwd=tmp_path).split())
    assert "fednudge" in fedtailor(*compared, *QUICK, "net=mlp", "--out", "out", cwd=tmp_path)
    assert (tmp_path / "out" / "fednudge-nu-0.2-s0" / "models" / "client-00003.safetensors").exists()


def test_a_net_in_one_file(fedtailor, tmp_path):
    assert written("docs/your-model.md", tmp_path) == ["mynet.py"]
    told, run, compared = commands("docs/your-model.md")
    assert "channels of the first convolution" in " ".join(fedtailor(*told, cwd=tmp_path).split())
    fedtailor(*run, *QUICK, "--out", "a", cwd=tmp_path)
    assert tomllib.loads((tmp_path / "a" / "config.toml").read_text())["net"] == {
        "name": str(tmp_path / "mynet.py"),
        "width": 8,
    }
    again = fedtailor("run", tmp_path / "a" / "config.toml", "--out", "b", cwd=tmp_path)
    assert (tmp_path / "a" / "clients.csv").read_text() == (tmp_path / "b" / "clients.csv").read_text(), again
    assert "fedrep" in fedtailor(*compared, *QUICK, "--out", "c", cwd=tmp_path)
    assert "net.width = 0 is not allowed" in fedtailor("run", "net=mynet.py", "net.width=0", code=2, cwd=tmp_path)
