"""Files are written whole or not at all, and a disk that refuses is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedtailor.files import Unwritable, make_folder, replace_text, replacing


def _half_written(path: Path) -> None:
    path.write_text("ne")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_whose_writing_fails_is_as_it_was_and_nothing_is_left_beside_it(tmp_path):
    replace_text(tmp_path / "a.txt", "old")
    with (
        pytest.raises(Unwritable, match=r"a.txt' cannot be written: No space left on device"),
        replacing(tmp_path / "a.txt") as draft,
    ):
        _half_written(draft)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a.txt") as draft:
        draft.write_text(str(1 / 0))
    assert not list(tmp_path.iterdir())


def test_what_the_writer_of_tensors_says_of_the_disk_is_told_in_the_same_words(tmp_path):
    with pytest.raises(Unwritable, match="No such file or directory"), replacing(tmp_path / "no" / "a") as draft:
        save_file({"a": np.zeros(3)}, draft)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match="Not a directory"):
        make_folder(tmp_path / "file" / "a")
    make_folder(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
