"""A run folder is there as a whole or not at all."""

from __future__ import annotations

import pytest

from fedtailor import FedTailorError
from fedtailor.analysis.results import find_runs
from fedtailor.experiment.draft import drafting
from fedtailor.experiment.run_folder import RunFolder


def test_nothing_is_there_before_it_is_published(tmp_path):
    with drafting(tmp_path / "runs" / "a") as draft:
        (draft.place / "config.toml").touch()
        assert not (tmp_path / "runs" / "a").exists()
        with pytest.raises(FedTailorError, match="holds no run"):
            find_runs([tmp_path])
        draft.publish()
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["a"]
    assert (tmp_path / "runs" / "a" / "config.toml").exists()


def test_a_start_that_fails_leaves_nothing_not_even_the_folders_above(tmp_path):
    with pytest.raises(ZeroDivisionError), drafting(tmp_path / "runs" / "a"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_is_cleared(tmp_path):
    (tmp_path / ".a.draft" / "deep").mkdir(parents=True)
    (tmp_path / ".a.draft" / "old").touch()
    with drafting(tmp_path / "a") as draft:
        assert [p.name for p in draft.place.iterdir()] == [".lock"]


@pytest.mark.parametrize("left", [[], [".draft/config.toml", "metrics.jsonl"], ["config.toml.draft"]])
def test_an_empty_folder_is_filled_and_so_is_one_in_which_a_start_was_cut_off(tmp_path, left):
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if left:
        with pytest.raises(FedTailorError, match="is not a run folder"):
            RunFolder.open(tmp_path)
    with drafting(tmp_path) as draft:
        for name in ("config.toml", "metrics.jsonl"):
            (draft.place / name).write_text("new")
        draft.publish()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "config.toml", "metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == "new"


def test_a_second_start_is_told_of_the_first_and_of_what_is_there(tmp_path):
    with (
        drafting(tmp_path / "a"),
        pytest.raises(FedTailorError, match=r"a' is being carried out by process"),
        drafting(tmp_path / "a"),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(FedTailorError, match="is not a folder"), drafting(tmp_path / "file"):
        pass
    with pytest.raises(FedTailorError, match="is not empty"), drafting(tmp_path):
        pass
