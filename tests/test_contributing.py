"""The worked example of CONTRIBUTING.md, followed to the letter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_method_in_one_file(tmp_path):
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["fednudge.py", "test_fednudge.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("pytest", "-q", "-p", "no:cacheprovider", "test_fednudge.py")
    assert "share of the averaged head" in " ".join(run("fedtailor", "methods", "fednudge.py").split())
    quick = ("rounds=2", "clients=4", "partition=iid", "net=mlp", "--out", "out")
    assert "fednudge" in run("fedtailor", "compare", "fedavg", "fednudge.py:nu=0.2", *quick)
    assert (tmp_path / "out" / "fednudge-nu-0.2-s0" / "models" / "client-00003.safetensors").exists()
