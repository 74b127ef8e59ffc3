"""Tables and reports of runs with privacy: ε, the rules in force, and what it does not cover."""

from __future__ import annotations

import math

import pytest

import fedtailor as ft
from fedtailor.methods import methods
from fedtailor.privacy.reveals import possible_rules, still_learnt
from fedtailor.privacy.rules import Rule
from fedtailor.report.privacy import epsilon, privacy_sheets
from fedtailor.report.tables import brief_sheet

pytest.importorskip("dp_accounting")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    federation = ft.Config.load(words=["clients=4", "data.fraction=0.1"]).federation()
    privacy = {"body": "dp", "noise": 1.0}
    settings = {"rounds": 1, "engine": "inline", "net": "mlp", "save_models": False}
    run = ft.run(
        federation, "fedrep", privacy=privacy, out=tmp_path_factory.mktemp("r") / "a", callbacks=[], **settings
    )
    return run.results[0]


def test_the_table_has_epsilon_and_says_what_it_does_not_cover(result):
    sheet = brief_sheet([result])
    place = sheet.header.index("ε of clients")
    assert float(sheet.rows[0][place]) == pytest.approx(epsilon(result), rel=0.01)
    assert math.isfinite(epsilon(result))
    assert "does not cover" in " ".join(sheet.notes)


def test_the_report_has_the_rules_in_force(result):
    (sheet,) = privacy_sheets([result])
    ((method, entry, rule, learnt),) = sheet.rows
    assert (method, entry, rule) == ("fedrep", "body", "dp")
    assert "before it adds noise" in learnt


def test_what_is_left_to_learn_and_which_rules_there_are():
    assert still_learnt("body", Rule.read("body", "refuse")).startswith("nothing")
    assert "alone" in still_learnt("body", Rule.read("body", "secure-sum"))
    assert possible_rules(methods.classes["fedas"])["fisher"] == "plain, refuse"
    assert "dp" in possible_rules(methods.classes["fedas"])["body"]
