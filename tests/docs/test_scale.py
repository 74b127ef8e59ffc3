"""The page on scale: its tables are what bench.growth wrote, and go on from it as they should."""

from __future__ import annotations

import pytest

from bench.growth import size
from bench.server import noise
from fedtailor.methods import methods
from tools.pages import scale

MODEL = 1000


def grown(pairs: float = 0, each: float = 0, once: float = MODEL, power: float = 1) -> dict[int, dict[str, float]]:
    return {
        n: {"model": MODEL, "kept": pairs * n**2 + each * n + once, "cpu_all": 1e-4 * n**power}
        for n in (250, 500, 1000)
    }


def test_what_was_measured_is_shown_and_the_rest_is_on_the_parabola():
    sizes = grown(pairs=8, each=2000)
    assert scale.at(sizes, "kept", 1000) == 8e6 + 2e6 + MODEL
    assert scale.at(sizes, "kept", 10**6) == pytest.approx(8e12 + 2e9 + MODEL, rel=1e-9)
    assert scale.exponent(grown(power=2), "cpu_all") == pytest.approx(2)
    assert [scale.bytes_of(n) for n in (0, 999, 4840, 246_620, 8.2e12)] == [
        "0 B",
        "999 B",
        "4.8 kB",
        "247 kB",
        "8.2 TB",
    ]


def test_methods_that_stop_are_listed_with_the_reason(monkeypatch):
    found = {"fedavg": grown(), "fedfomo": grown(pairs=8, each=MODEL), "fedamp": grown(each=2 * MODEL, power=2)}
    monkeypatch.setattr(scale, "measured", lambda: found)
    _, _, *rows = scale.stops_table().splitlines()
    assert len(rows) == 2
    assert "keeps a model per client, keeps 8 bytes per pair of clients | *90,000 clients*" in rows[0]
    assert (
        "keeps 2 models per client, its work grows faster than the number of participants, as of all pairs | *40,000,000 clients*"
        in rows[1]
    )


def test_every_method_was_measured():
    assert scale.measured().keys() == methods.classes.keys()
    for name, sizes in scale.measured().items():
        assert {250, 500} <= sizes.keys()
        if not methods.classes[name].up:
            assert all(row["up"] == row["down"] == 0 for row in sizes.values())


def test_a_model_for_all_does_not_grow_and_a_model_per_client_does():
    from bench.growth import measured

    small, large = ({n: measured(name, noise(n)) for n in (6, 12)} for name in ("fedavg", "fedamp"))
    assert small[6]["kept"] == small[12]["kept"] == small[12]["model"]
    assert large[12]["kept"] == 2 * large[6]["kept"] == pytest.approx(24 * large[6]["model"], rel=1e-3)
    assert size([]) == 0
