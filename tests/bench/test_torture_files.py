"""The fuzzer of data files in a reduced form, in a process of its own: it forks, and the threads of other tests are not its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_mutated_file_is_read_wrongly_or_without_words():
    command = [sys.executable, "-m", "bench.torture", "files", "--share", "0.03"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.rstrip().endswith("| 90 | 0 |")
