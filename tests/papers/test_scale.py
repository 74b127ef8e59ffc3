"""What is shrunk is shrunk everywhere, and said."""

from __future__ import annotations

import pytest

from fedtailor import Config, FedTailorError
from fedtailor.papers.presets import find
from fedtailor.papers.scale import Scale


def told(name: str, text: str) -> str:
    return Scale.parse(text, find(name)).description(find(name))


def test_full_is_the_paper_itself():
    preset = find("pgfedsplit/table2")
    assert Scale.parse("full", preset).shrunk(preset) == preset
    assert told("pgfedsplit/table2", "full") == ""


def test_every_wish_reaches_every_run_and_is_told():
    preset = find("pgfedsplit/table2")
    text = "fraction=0.05,rounds=20,seeds=2,methods=local+fedavg-ft+pgfedsplit,columns=1+3"
    small = Scale.parse(text, preset).shrunk(preset)
    assert small.rows == ["Local", "FedAvg+FT", "PGFedSplit"]
    assert small.columns == ["FashionMNIST, Dir 0.1", "CIFAR10, Dir 0.1"]
    assert small.seeds == 2
    for cell in small.cells:
        config = Config.load(words=cell.parts[0].overrides)
        assert (config.settings.rounds, config.data_settings.fraction) == (20, 0.05)
    said = told("pgfedsplit/table2", text)
    for piece in (
        "5 % of the samples",
        "20 rounds instead of 200",
        "2 seeds instead of 3",
        "3 of 14 rows",
        "2 of 10 columns",
    ):
        assert piece in said


def test_a_word_that_the_preset_itself_has_undone_is_a_change_too():
    preset = find("fedafk/table1")  # net=cnn for all data sets, then net=resnet18 for this one
    assert "net=cnn" in Scale(overrides=("net=cnn",)).description(preset)
    assert "net=" not in Scale(overrides=("net=resnet18",)).description(preset)


def test_a_scale_never_adds_anything():
    preset = find("fedah/table5")
    small = Scale.parse("rounds=600,seeds=50", preset).shrunk(preset)
    assert small.seeds == 5
    rounds = {Config.load(words=c.parts[0].overrides).settings.rounds for c in small.cells}
    assert rounds == {600, 500, 300}
    assert told("fedah/table5", "rounds=600") == "600 rounds instead of 800 or 1000"
    assert told("fedah/table5", "rounds=600,columns=2") == "600 rounds instead of 800; 1 of 4 columns"


@pytest.mark.parametrize("name", ["fedsimsup/table2", "fedsimsup/fig9"])
def test_fewer_rounds_keep_the_share_after_which_fedsimsup_weakens(name):
    preset = find(name)
    small = Scale.parse("rounds=60", preset).shrunk(preset)
    for cell, full in zip(small.cells, preset.cells, strict=True):
        before, after = (Config.load(words=c.parts[0].overrides) for c in (full, cell))
        if before.method.name != "fedsimsup":
            assert after.method == before.method
            continue
        turns = [c.method.C * c.settings.rounds**c.method.gamma / c.settings.rounds for c in (before, after)]
        assert turns[1] == pytest.approx(turns[0], rel=1e-5)
        assert after.settings.rounds == 60
    assert "method.C=" in told(name, "rounds=60")
    own = Scale.parse("rounds=60,methods=fedsimsup,method.C=30", find("fedsimsup/table2")).shrunk(
        find("fedsimsup/table2")
    )
    assert {Config.load(words=c.parts[0].overrides).method.C for c in own.cells} == {30}  # what is asked for stands


def test_a_word_of_its_own_may_ask_for_more():
    preset = find("fedah/table1")
    more = Scale(over=("epochs=8", "lr=1"))
    assert {Config.load(words=c.parts[0].overrides).settings.epochs for c in more.shrunk(preset).cells} == {8}
    assert more.description(preset) == "lr=1; 8 epochs instead of 1"


def test_an_option_reaches_only_the_methods_that_have_it():
    preset = find("heart/table1")
    small = Scale.parse("smoke,columns=1", preset).shrunk(preset)
    overrides = {c.row: c.parts[0].overrides for c in small.cells}
    assert "method.akt_steps=2" in overrides["PerAda"]
    assert "method.akt_steps=2" not in overrides["Ditto"]
    assert "method.akt_steps=2" in told("heart/table1", "smoke")


def test_on_other_data_nothing_is_compared_with_published_numbers():
    preset = find("pgfedsplit/table3")
    small = Scale.parse("data=digits", preset).shrunk(preset)
    assert small == Scale(over=("data=digits",)).shrunk(preset)
    assert small.columns[0] == "digits for CIFAR10, Dir 0.1"
    assert all(cell.number is None for cell in small.cells)
    assert "data=digits" in told("pgfedsplit/table3", "data=digits")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods=fedrap", "Did you mean 'fedrep'"),
        ("columns=11", "has 10 columns: 1 FashionMNIST"),
        ("columns=a", "whole number"),
        ("seeds=0", "whole number"),
        ("smok", "Did you mean 'smoke'"),
    ],
)
def test_mistakes_are_told_in_words(text, message):
    with pytest.raises(FedTailorError, match=message):
        Scale.parse(text, find("pgfedsplit/table2"))
