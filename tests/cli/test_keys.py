"""The keys of a config, as `fedtailor options` describes them."""

from __future__ import annotations

import pytest

from fedtailor.cli.keys import GROUPS, PARTS
from fedtailor.experiment.config import DataSettings, Settings
from fedtailor.registry import options


def test_every_key_is_listed_with_meaning_default_and_bounds(fedtailor):
    listing = fedtailor("options")
    words = " ".join(listing.split())
    for prefix, cls in (("", Settings), ("data.", DataSettings)):
        for option in options(cls):
            assert any(line.startswith(f"{prefix}{option.name} ") for line in listing.splitlines()), option.name
            assert option.meaning in words
    assert "learning rate of local training default 0.05 · float > 0" in words
    assert "default fresh · fresh | kept" in words
    assert "More" not in listing.splitlines()  # each key has its group


def test_groups_name_keys_that_there_are_and_each_once():
    placed = [name for names in GROUPS.values() for name in names]
    assert len(placed) == len(set(placed))
    assert set(placed) == {o.name for o in options(Settings)} | set(PARTS)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("eval_point", "Allowed: method | after_sync | after_train Default: method"),
        ("metrics", "Allowed: list of str | function Default: none Known: accuracy, balanced_accuracy"),
        (
            "data.fraction",
            "use only this share of the samples, drawn at random Allowed: float > 0 and ≤ 1 Default: 1.0",
        ),
        ("method", "Default: fedrep Known: apfl, ditto"),
        ("net.hidden", "In nets: mlp widths of the hidden layers"),
        ("method.head_epochs", "In methods: "),
    ],
)
def test_one_key_in_full(fedtailor, key, said):
    assert said in " ".join(fedtailor("options", key).split())


@pytest.mark.parametrize(
    ("typed", "meant"), [("optimiser", "optimizer"), ("hidden", "net.hidden"), ("data.rot", "data.root")]
)
def test_a_misspelled_key_gets_a_suggestion(fedtailor, typed, meant):
    assert f"There is no key '{typed}'. Did you mean '{meant}'?" in fedtailor("options", typed, code=2)
