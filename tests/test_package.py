"""What `import fedtailor` gives."""

import pytest

import fedtailor


def test_every_name_that_is_offered_is_there():
    assert {name: getattr(fedtailor, name).__name__ for name in fedtailor.__all__} == {n: n for n in fedtailor.__all__}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        _ = fedtailor.Simulator
