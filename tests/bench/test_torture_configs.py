"""A reduced form of the fuzzing of configs."""

from bench.torture.configs import run


def test_no_mutated_config_ends_in_a_traceback():
    (result,) = run(0.01)
    assert result.tries == 30
    assert result.failures == ()
