"""A reduced form of the fuzzing of data files."""

from bench.torture.files import run


def test_no_mutated_file_is_read_wrongly_or_without_words():
    written, read = run(0.03)
    assert written.failures == ()
    assert read.tries == 90
    assert read.failures == ()
