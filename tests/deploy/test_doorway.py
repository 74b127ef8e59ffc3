"""The process that Flower starts for a message, and the site's own process that it hands the message to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtailor.deploy.doorway import address_of, ask
from fedtailor.deploy.terms import from_words, to_flat
from fedtailor.engines.letters import read_site, write_call
from fedtailor.errors import FedTailorError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")

RUN = to_flat(*from_words({}, ["data=digits", "data.fraction=0.1", "net=mlp", "clients=2", "folder=there"]))


def residents(place: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "fedtailor.deploy.resident" in words and str(place) in words:
            found.append(int(process.name))
    return found


@pytest.fixture
def place(tmp_path) -> Iterator[Path]:
    yield tmp_path
    for process in residents(tmp_path):
        os.kill(process, signal.SIGTERM)


def test_one_process_serves_message_after_message_and_a_killed_one_is_replaced(place):
    def names(client: int) -> str:
        config = {"client": client, "folder": str(place)}
        return read_site(ask(RUN, config, write_call({"work": "describe"}, {}))).name

    first = names(1)
    (process,) = residents(place)
    assert names(1) == first != names(0)  # other data is opened for another config
    assert residents(place) == [process]
    with pytest.raises(FedTailorError, match="clients are 0 to 1"):
        names(7)
    assert residents(place) == [process]
    os.kill(process, signal.SIGKILL)
    assert names(1) == first
    (second,) = residents(place)
    assert second != process
    folder = Path(address_of(place).read_text()).parent
    os.kill(second, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while folder.exists():  # what is told to end takes its socket with it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_ends_with_the_node_that_it_was_started_for(place):
    node = subprocess.Popen(["sleep", "600"])
    command = [sys.executable, "-m", "fedtailor.deploy.resident", str(place), str(node.pid)]
    resident = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert resident.stdout is not None
    with resident.stdout:
        assert resident.stdout.readline() == b"ready\n"
    socket = Path(address_of(place).read_text())
    assert socket.exists()
    assert socket.parent.stat().st_mode & 0o077 == 0  # nobody else can reach it
    node.kill()
    node.wait()
    assert resident.wait(timeout=60) == 0
    assert not socket.exists()


def test_a_process_that_cannot_start_is_told_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    began = time.monotonic()
    with pytest.raises(FedTailorError, match=r"did not start.*resident\.log"):
        ask({}, {"folder": str(tmp_path)}, write_call({"work": "describe"}, {}))
    assert time.monotonic() - began < 30


def test_what_flower_starts_for_a_message_does_without_torch():
    check = "import sys, fedtailor.deploy.doorway; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
