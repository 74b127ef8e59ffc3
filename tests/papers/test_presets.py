"""Every published number has its cell, and every cell the paper's protocol."""

from __future__ import annotations

from collections import Counter

import pytest

from fedtailor import Config, FedTailorError
from fedtailor.papers import published
from fedtailor.papers.presets import PresetCell, find, presets, settled
from fedtailor.report.figures import FIGURES


def cell(name: str, row: str, column: str) -> PresetCell:
    return next(c for c in find(name).cells if (c.row, c.column) == (row, column))


def config(name: str, row: str, column: str) -> Config:
    (part,) = cell(name, row, column).parts
    return Config.load(words=part.overrides)


def test_every_published_number_is_reached_by_exactly_one_cell():
    reached = Counter(c.number for preset in presets().values() for c in preset.cells if c.number)
    assert reached == Counter(published())


@pytest.mark.parametrize("name", presets())
def test_every_run_has_a_valid_config_and_every_figure_can_be_drawn(name):
    preset = find(name)
    assert preset.choices
    assert set(preset.figures) <= set(FIGURES)
    for overrides in {part.overrides for c in preset.cells for part in c.parts}:
        assert Config.load(words=overrides).settings.partition_seed == 1
    places = [(c.row, c.column) for c in preset.cells]
    assert len(places) == len(set(places))


def test_protocols_are_those_of_the_papers():
    scaled = config("pgfedsplit/table3", "PGFedSplit", "CIFAR100, Dir 0.1")
    assert (scaled.settings.clients, scaled.settings.join, scaled.settings.rounds) == (100, 0.3, 200)
    assert (scaled.method.tau, scaled.settings.epochs, scaled.settings.batch, scaled.settings.lr) == (20, 5, 64, 0.005)
    sampled = config("fedah/table4", "FedAH", "CIFAR100, 50 clients, Dir 0.1, ρ in [0.1, 1]")
    assert (sampled.settings.join_range, sampled.settings.clients, sampled.settings.rounds) == ((0.1, 1.0), 50, 2000)
    skewed = config("fedafk/table3", "FedFomo", "CIFAR100, 10 classes")
    assert (skewed.partition.name, skewed.partition.classes_per_client) == ("pathological", 10)
    assert (skewed.net.name, skewed.settings.lr, skewed.method.M) == ("resnet18", 0.01, 20)
    assert config("fedsimsup/table3", "Local", "CIFAR10, 50 clients, 5 shards").partition.shards == 5
    assert config("fedah/table5", "FedAH", "CIFAR10, Dir 0.1, 40 epochs").settings.rounds == 300
    adapted = config("heart/table1", "HEART-PFL", "Flowers102, Dir 0.3")
    assert (adapted.net.name, adapted.partition.beta, adapted.settings.lr) == ("resnet18-adapters", 0.3, 0.01)
    assert adapted.net.weights.endswith("resnet18-imagenet.pth")


@pytest.mark.parametrize("name", ["heart/section4.2", "pgfedsplit/table2"])
def test_derived_cells_give_the_published_number_when_their_runs_give_the_published_ones(name):
    table = find("heart/table1" if name.startswith("heart") else name)
    told = {c.parts[0].name: c for c in table.cells if len(c.parts) == 1}
    derived = [c for c in find(name).cells if len(c.parts) > 1]
    assert len(derived) in (12, 28)
    for c in derived:
        assert sum(p.weight * told[p.name].published for p in c.parts) == pytest.approx(c.published, abs=0.0101)
    part = derived[0].parts[0]
    assert Config.load(words=part.overrides) == Config.load(words=told[part.name].parts[0].overrides)


def test_rows_of_one_run_share_it():
    parts = {
        cell("fedsimsup/table4", f"FedSimSup-{g}", "CIFAR10, 100 clients, Dir 0.1").parts[0].overrides for g in "TCL"
    }
    assert len(parts) == 1
    assert cell("fedsimsup/table4", "FedSimSup-T", "CIFAR10, 100 clients, Dir 0.1").group == "vit"


def test_hospitals_are_clients_of_one_run():
    cells = [c for c in find("flamby/heart").cells if c.row == "FedAvg"]
    assert [c.column for c in cells] == [c.group for c in cells] == ["Cleveland", "Hungarian", "Switzerland", "VA"]
    assert len({c.parts for c in cells}) == 1
    settings = config("flamby/heart", "FedYogi", "VA").settings
    assert (settings.rounds, settings.steps, settings.batch, settings.clients) == (15, 100, 4, 4)
    assert (settings.lr, settings.server_optimizer, settings.server_lr) == (0.003162, "yogi", 0.01)
    alone = config("flamby/heart", "each alone", "VA")
    assert (alone.settings.epochs, alone.settings.steps, alone.settings.optimizer) == (50, 0, "adam")
    assert find("flamby/heart").seed_numbers == range(42, 47)
    assert {"local", "ditto", "fedala"} <= set(find("flamby/personalized").rows)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(FedTailorError, match="Did you mean 'pgfedsplit/table2'"):
        find("pgfedsplit/tabel2")


def test_settled_words_mean_the_same():
    overrides = [
        "net=mlp",
        "net.hidden=[4]",
        "rounds=2",
        "partition.beta=0.1",
        "net=lenet",
        "rounds=3",
        "partition.beta=0.1",
    ]
    assert settled(overrides) == ("net=mlp", "net.hidden=[4]", "net=lenet", "rounds=3", "partition.beta=0.1")
    assert Config.load(words=settled(overrides)) == Config.load(words=overrides)
