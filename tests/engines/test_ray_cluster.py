"""A cluster of two Ray nodes on this machine, one of which is killed while a run goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from fedtailor.experiment.run_folder import read_lines

WORDS = ["clients=5", "partition=iid", "net=mlp", "net.hidden=[8]", "rounds=60", "checkpoint_every=5", "workers=2"]


@contextmanager
def node(*words: str) -> Iterator[subprocess.Popen]:
    """`ray start` with one core, which ends with this context."""
    ray = Path(sys.executable).with_name("ray")
    small = ["--num-cpus=1", "--object-store-memory=100000000", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    process = subprocess.Popen(
        [ray, "start", "--block", *small, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in process.stdout:
            if "Ray runtime started" in line:
                break
        else:
            pytest.fail("ray start did not start a node")
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def raylet_of(process: subprocess.Popen) -> int:
    """The process that is a node's heart."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next(int(p) for p in children if os.readlink(f"/proc/{p}/exe").endswith("/raylet"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedtailor", "run", *WORDS, *words, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_round(folder: Path, round: int, process: subprocess.Popen) -> None:
    while not (folder / "metrics.jsonl").exists() or len(read_lines(folder / "metrics.jsonl")) < round:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def numbers(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds_")} for r in read_lines(folder / "metrics.jsonl")]


@pytest.mark.slow
def test_a_run_outlives_a_node(tmp_path):
    port = free_port()
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    with node(*head), node(f"--address=127.0.0.1:{port}") as second:
        lost = run(tmp_path / "lost", "engine=ray", f"ray_address=127.0.0.1:{port}")
        wait_for_round(tmp_path / "lost", 8, lost)
        os.kill(raylet_of(second), signal.SIGKILL)
        said = lost.communicate(timeout=180)[0]
    assert lost.returncode == 0, said
    assert "was lost in round" in said
    whole = run(tmp_path / "whole", "engine=inline")
    assert whole.wait(timeout=180) == 0
    assert numbers(tmp_path / "lost") == numbers(tmp_path / "whole")
    models = sorted(p.name for p in (tmp_path / "whole" / "models").iterdir())
    assert len(models) == 5
    for model in models:
        assert (tmp_path / "lost" / "models" / model).read_bytes() == (
            tmp_path / "whole" / "models" / model
        ).read_bytes()
