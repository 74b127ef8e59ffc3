from __future__ import annotations

import json

import pytest

import fedtailor as ft
from fedtailor.auditing import audit as auditing
from fedtailor.errors import FedTailorError
from fedtailor.report.audit import audit_sheet, gaps, summary


@pytest.fixture
def run(federation, tmp_path):
    return ft.run(federation, "fedproto", net="mlp", rounds=1, out=tmp_path / "a", callbacks=[])


@pytest.fixture
def run_of_weights(federation, tmp_path):
    return ft.run(federation, "fedper", net="mlp", rounds=1, out=tmp_path / "b", callbacks=[])


def test_an_audit_is_written_into_the_run_folder_which_stays_finished(run_of_weights, federation):
    path = run_of_weights.path
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    found = ft.audit(path, federation=federation)
    assert {"audit.json", "audit.md", "audit.png"} <= {file.name for file in path.iterdir()}
    assert {name: (path / name).read_bytes() for name in before} == before
    assert ft.load(path, federation=federation).resume(federation=federation).nothing_left
    assert {f.measurement for f in found.findings} == {"labels", "membership", "canary", "inversion"}
    page = (path / "audit.md").read_text()
    assert "A failed attack is no proof of safety" in page
    assert "| inversion | body | server | one step on 1 | 1.00 \\[1.00, 1.00\\] |" in page
    assert "hold training samples" in page
    assert "## What was not measured" in page


def test_a_short_time_leaves_measurements_that_the_next_call_makes(run, federation, monkeypatch):
    first = ft.audit(run.path, minutes=0, federation=federation)
    assert len(first.done) == 1
    assert len(first.left) > 3
    assert "For lack of time" in " ".join(gaps(first))
    whole = ft.audit(run.path, federation=federation)
    assert not whole.left
    again = json.loads((run.path / "audit.json").read_bytes())
    monkeypatch.setattr(auditing, "units", lambda subject: pytest.fail("nothing is left") if not again else [])
    known = ft.audit(run.path, federation=federation)
    assert [f.score for f in known.findings] == [f.score for f in whole.findings]


def test_numbers_are_the_same_again(run, federation):
    one = ft.audit(run.path, federation=federation)
    (run.path / "audit.json").unlink()
    two = ft.audit(run.path, federation=federation)
    assert [f.score for f in one.findings] == [f.score for f in two.findings]


def test_the_table_says_what_leaks_and_what_was_not_tried(run, federation):
    found = ft.audit(run.path, federation=federation)
    rows = {(row[0], row[1]): row for row in audit_sheet(found).rows}
    assert rows["labels", "counts"][-1] == "not by this attack"  # all have all classes, and the counts sent are all 1
    assert any("which classes" in line for line in summary(found))
    assert ("membership", "personal model") in rows


def test_what_cannot_be_audited_is_refused_in_words(run, federation, tmp_path):
    with pytest.raises(FedTailorError, match="made in Python: give it again"):
        ft.audit(run.path)
    with pytest.raises(FedTailorError, match="is not a run folder"):
        ft.audit(tmp_path)
    (run.path / "status.json").write_text('{"state": "interrupted", "round": 1}')
    with pytest.raises(FedTailorError, match="an audit is of a finished run"):
        ft.audit(run.path, federation=federation)
