"""The rules of the table `privacy`: what is refused, and that everything without a rule is."""

from __future__ import annotations

import dataclasses

import pytest

import fedtailor as ft
from fedtailor.experiment.config import Config
from fedtailor.methods import methods
from fedtailor.privacy.rules import Privacy, Rule

REFUSED = {
    "no rule": ({"body": "dpp"}, "Did you mean 'dp'"),
    "not a text": ({"body": 3}, "is no rule"),
    "no name": ({"bdy": "dp"}, "Did you mean 'body'"),
    "plain and more": ({"body": "plain+dp"}, "plain stands alone"),
    "robust and hidden": ({"body": "secure-sum+robust(median)"}, "looks at single replies"),
    "robust by nothing": ({"body": "robust"}, "such as robust\\(median\\)"),
    "twice": ({"body": "dp+dp"}, "is no rule"),
    "a channel averaged": ({"body": "dp", "scores": "dp"}, "plain or refuse"),
    "options of nothing": ({"body": "plain", "epsilon": 2}, "needs an entry with the rule dp"),
    "short for two": ({"body": "dp(epsilon=2)", "head": "dp"}, "short for a run that protects one"),
    "said twice": ({"body": "dp(epsilon=2)", "epsilon": 2}, "same twice"),
    "negative": ({"body": "dp", "epsilon": -1}, "privacy.epsilon"),
    "brackets of nothing": ({"body": "plain(epsilon=2)"}, "nothing in brackets"),
    "no table": ("dp", "no table of rules"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_table_is_refused_in_a_sentence(case):
    table, message = REFUSED[case]
    with pytest.raises(ft.FedTailorError, match=message):
        Privacy.read(table)


def test_dp_in_brackets_is_short_for_both():
    assert Privacy.read({"body": "dp(epsilon=2, delta=1e-5)"}) == Privacy.read(
        {"body": "dp", "epsilon": 2, "delta": 1e-5}
    )


@pytest.mark.parametrize("rule", ["plain", "refuse", "dp", "secure-sum", "dp+secure-sum", "robust(trimmed)"])
def test_a_table_reads_as_it_is_written(rule):
    written = Privacy.read({"body": rule}).values()
    assert written["body"] == rule
    assert Privacy.read(written).values() == written


def test_with_any_rule_a_name_without_one_is_refused():
    with pytest.raises(ft.FedTailorError, match="dp needs an amount"):
        Config.load(words=["method=fedrep", "privacy.body=dp"])
    with pytest.raises(ft.FedTailorError, match="give one for head"):
        Config.load(words=["method=fedah", "privacy.body=plain"])


@pytest.mark.parametrize("rule", ["dp", "secure-sum", "robust(median)"])
@pytest.mark.parametrize(
    ("method", "name"), [("fedamp", "model"), ("fedfomo", "model"), ("fedproto", "means"), ("perada", "model")]
)
def test_what_is_not_only_averaged_cannot_be_protected(method, name, rule):
    rules = dict.fromkeys(methods.classes[method].up, "plain") | {name: rule}
    with pytest.raises(ft.FedTailorError, match=f"{method} uses each client's {name} by itself"):
        Privacy.read(rules).of(methods.build(method, {}))
    amount = {"epsilon": 2} if rule == "dp" else {}
    Privacy.read({"model": rule, **amount}).of(methods.build("perada", {"akt": False}))


def test_a_config_shows_its_rules_and_runs_without_them_have_none():
    config = Config.load(words=["method=fedrep", "privacy.body=dp", "privacy.epsilon=2"])
    assert config.values()["privacy"] == {"body": "dp", "epsilon": 2.0, "clip": 1.0}
    assert Config.from_values(config.values()) == config
    assert "privacy" not in Config.load().values()


def test_a_name_that_is_refused_does_not_leave(federation):
    run = ft.Simulation(federation, "fedah", rounds=1, engine="inline", privacy={"body": "plain", "head": "refuse"})
    with pytest.raises(ft.FedTailorError, match=r"fedah sends head, which privacy.head = refuse forbids"):
        run.run()


def test_plain_rules_change_no_bit(federation):
    plain = ft.Simulation(federation, "fedah", rounds=2, engine="inline").run()
    ruled = ft.Simulation(
        federation, "fedah", rounds=2, engine="inline", privacy={"body": "plain", "head": "plain"}
    ).run()
    assert all(plain.server.state[name].equal(ruled.server.state[name]) for name in plain.server.state)


def test_a_rule_is_a_value():
    assert Rule.read("body", " dp + secure-sum ") == Rule.read("body", "dp+secure-sum")
    assert dataclasses.is_dataclass(Rule)
