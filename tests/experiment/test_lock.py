"""One process at a time has a run folder."""

from __future__ import annotations

import os
import signal

import pytest

from fedtailor import FedTailorError
from fedtailor.experiment.lock import locked


def test_who_comes_second_is_told_who_has_it(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(FedTailorError, match=f"is being carried out by process {os.getpid()} on "),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_the_lock_follows_a_folder_that_is_renamed(tmp_path):
    (tmp_path / "draft").mkdir()
    with locked(tmp_path / "draft"):
        (tmp_path / "draft").rename(tmp_path / "run")
        with pytest.raises(FedTailorError, match="is being carried out"), locked(tmp_path / "run"):
            pass


def test_forked_workers_do_not_keep_the_lock_of_their_parent(tmp_path):
    up, down = os.pipe()
    with locked(tmp_path):
        worker = os.fork()
        if not worker:
            os.write(down, b"here")
            signal.pause()
            os._exit(0)
        os.read(up, 4)
    try:
        with locked(tmp_path):  # the worker is still there
            assert os.waitpid(worker, os.WNOHANG) == (0, 0)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
