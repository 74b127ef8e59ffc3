"""The watch: this machine only, in step with the folder, and gone at Ctrl-C."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from threading import Thread

import pytest

from fedtailor.errors import FedTailorError
from fedtailor.experiment.lock import locked
from fedtailor.report import live
from fedtailor.report.live import serve


@pytest.fixture
def ask(make_run, tmp_path):
    """Ask the watch of tmp_path/a for a path: the answer's code and words."""
    run = make_run("a", "rounds=9", accuracy=[0.5], state="running")
    server = serve([run], "fedtailor watch a")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def answer(path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    yield answer
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_run_that_nobody_carries_on_is_interrupted(ask, tmp_path):
    """Its status.json still says running: whoever was killed wrote nothing."""
    with locked(tmp_path / "a"):
        first = json.loads(ask("/content.json")[1])
        assert "running after round 1 of 9" in first["texts"]["runs"]
    code, text = ask(f"/content.json?since={first['stamp']}")
    assert code == 200
    assert "interrupted after round 1 of 9" in json.loads(text)["texts"]["runs"]


def test_the_page_and_then_only_what_changed(ask, tmp_path):
    code, page = ask("/")
    assert code == 200
    assert "interrupted after round 1 of 9" in page
    first = json.loads(ask("/content.json")[1])
    assert ask(f"/content.json?since={first['stamp']}") == (204, "")

    line = json.loads((tmp_path / "a" / "metrics.jsonl").read_text())
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {"round": 2, "accuracy_mean": 0.75}) + "\n")
    code, text = ask(f"/content.json?since={first['stamp']}")
    fresh = json.loads(text)
    assert code == 200
    assert fresh["charts"]["f0-rounds-0"]["data"][0]["y"] == [49.0, 75.0]
    assert "interrupted after round 2 of 9" in fresh["texts"]["runs"]
    assert fresh["texts"].keys() == first["texts"].keys()


def test_nobody_else_is_answered(ask):
    assert ask("/", Host="evil.example")[0] == 403  # a page elsewhere that made its name point here
    assert ask("/../../etc/passwd")[0] == 404
    assert ask("/status.json")[0] == 404


def test_a_folder_that_vanished_is_told_and_the_watch_goes_on(ask, tmp_path):
    (tmp_path / "a").rename(tmp_path / "b")
    code, words = ask("/")
    assert code == 503
    assert "is not a folder" in words
    (tmp_path / "b").rename(tmp_path / "a")
    assert ask("/")[0] == 200


def test_mistakes_are_told_before_anything_is_served(make_run, tmp_path):
    with pytest.raises(FedTailorError, match="holds no run"):
        serve([tmp_path], "x")
    run = make_run("a")
    with (
        serve([run], "x") as server,
        pytest.raises(FedTailorError, match=f"Port {server.server_port} cannot be used"),
    ):
        serve([run], "x", server.server_port)


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(make_run):
    words = [sys.executable, "-u", "-m", "fedtailor", "watch", str(make_run("a"))]
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background may ignore it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, text=True, preexec_fn=heeding) as watch:
        address = watch.stdout.readline().split()[3]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as reply:
            assert b"<title>" in reply.read(9000)
        watch.send_signal(signal.SIGINT)
        out, err = watch.communicate(timeout=30)
    assert (watch.returncode, out, err) == (0, "Watch ended.\n", "")


@pytest.fixture
def address(make_run, monkeypatch):
    """The watch with little patience and room for two."""
    monkeypatch.setattr(live, "PATIENCE", 0.3)
    monkeypatch.setattr(live, "MOST_AT_ONCE", 2)
    server = serve([make_run("a")], "fedtailor watch a")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_half_open_connection_is_closed(address, said, capfd):
    with socket.create_connection(address, timeout=20) as half:
        half.sendall(said)
        assert half.recv(100) == b""
    assert capfd.readouterr().err == ""


def test_a_byte_now_and_then_does_not_keep_it_open(address):
    with socket.create_connection(address, timeout=20) as slow:
        left = next((k for k in range(200) if not _dripped(slow)), None)
    assert left is not None


def _dripped(connection: socket.socket) -> bool:
    time.sleep(0.05)
    try:
        connection.sendall(b"G")
    except ConnectionError:
        return False
    return True


def test_more_than_a_few_at_once_are_hung_up_on_and_may_come_again(address):
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(socket.create_connection(address, timeout=20))
        time.sleep(0.1)
        with socket.create_connection(address, timeout=20) as third:
            began = time.monotonic()
            with suppress(ConnectionError):
                assert third.recv(1) == b""
            assert time.monotonic() - began < 10
    time.sleep(0.5)
    with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/", timeout=20) as reply:
        assert reply.status == 200


def test_whoever_leaves_in_the_middle_is_not_a_traceback(address, capfd):
    for _ in range(2):
        gone = socket.create_connection(address, timeout=20)
        gone.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()  # with a reset
        time.sleep(0.2)
    assert capfd.readouterr().err == ""
