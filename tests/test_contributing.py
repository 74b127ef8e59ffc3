"""The worked example of CONTRIBUTING.md, followed to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_method_in_one_file(fedtailor, tmp_path):
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["fednudge.py", "test_fednudge.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())

    assert pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path / "test_fednudge.py")]) == 0
    told = fedtailor("methods", "fednudge.py", cwd=tmp_path)
    assert "share of the averaged head" in " ".join(told.split())
    quick = ("rounds=2", "clients=4", "partition=iid", "net=mlp", "--out", "out")
    assert "fednudge" in fedtailor("compare", "fedavg", "fednudge.py:nu=0.2", *quick, cwd=tmp_path)
    assert (tmp_path / "out" / "fednudge-nu-0.2-s0" / "models" / "client-00003.safetensors").exists()
