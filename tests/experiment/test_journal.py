"""A growing file knows what it held."""

from __future__ import annotations

from fedtailor.experiment.journal import Journal, mark_of


def test_a_mark_holds_while_the_beginning_of_the_file_is_what_it_was(tmp_path):
    journal = Journal(tmp_path / "a")
    journal.append("one")
    mark = journal.mark()
    assert mark == mark_of(tmp_path / "a")
    journal.append("two")
    assert journal.holds(mark)
    for text in ("onE\ntwo\n", "on", ""):
        (tmp_path / "a").write_text(text)
        assert not journal.holds(mark)
    (tmp_path / "a").unlink()
    assert not journal.holds(mark)


def test_a_file_that_was_cut_goes_on_from_there(tmp_path):
    journal = Journal(tmp_path / "a")
    journal.append("one")
    mark = journal.mark()
    with (tmp_path / "a").open("a") as file:
        file.write("hal")  # cut short by a kill
    again = Journal(tmp_path / "a")
    again.cut(mark.bytes)
    assert again.mark() == mark
    again.append("two")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    assert again.mark() == mark_of(tmp_path / "a")
