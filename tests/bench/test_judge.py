from __future__ import annotations

import json

import numpy as np
import pytest

from bench import advice, judge


def runs(*scores: list[float], samples: int = 100) -> dict:
    """A method with one run per list of clients' scores, with the judge's seeds."""
    made = [
        {"seed": seed, "clients": values, "samples": [samples] * len(values), "best_round": max(values), "seconds": 1.0}
        for seed, values in zip(judge.SEEDS, scores, strict=False)
    ]
    return {"runs": made, "trials": 12, "chosen": "lr=0.1", "tuning_seconds": 5.0}


def test_mean_and_worst_decile_by_hand():
    clients = np.array([0.5, 0.9, 0.7, np.nan])
    assert judge.mean_and_decile(clients) == pytest.approx((0.7, 0.5))
    assert judge.mean_and_decile(np.arange(20) / 20) == pytest.approx((0.475, 0.025))  # the worst two


def test_worse_off_is_counted_with_and_without_chance():
    setting = judge.SETTINGS["har"]
    alone = judge._by_seed(runs([0.9, 0.5, 0.8, 0.6])["runs"])
    own = runs([0.5, 0.49, 0.9, 0.6])["runs"]  # the first is surely worse, the second by chance
    assert judge.worse_off(setting, own, alone) == "50 % (25.0 %)"
    assert judge.worse_off(judge.SETTINGS["lending"], own, alone) == "50 %"


def test_the_page_says_who_leads():
    found = {"har": {"local": runs([0.5] * 4), "fedrep": runs([0.7] * 4), "tailor": runs([0.8, 0.8, 0.8, 0.3])}}
    text = judge.page(found)
    assert "`tailor` has the best mean in 0 of 1 settings and the best worst decile in 0." in text
    assert "mean -2.5, worst decile -40.0" in text
    found["har"]["tailor"] = runs([0.8, 0.8, 0.8, 0.7])
    text = judge.page(found)
    assert "best mean in 1 of 1 settings and the best worst decile in 1" in text
    assert text.index("| tailor |") < text.index("| fedrep |") < text.index("| local |")


def test_regret_and_caught_cases_by_hand():
    one = {"gain": [0.1, 0.05, 0.15], "metric": "accuracy", "minutes": 1.0, "trials": 5}
    found = {
        "a": one
        | {"verdict": "federate", "method": "fedrep", "tested": {"local": [0.5], "fedrep": [0.6], "tailor": [0.63]}},
        "b": one
        | {"verdict": "alone", "method": "fedrep", "tested": {"local": [0.7], "fedrep": [0.7], "tailor": [0.6]}},
        "c": one
        | {"verdict": "unclear", "method": "fedrep", "tested": {"local": [0.7], "fedrep": [0.65], "tailor": [0.6]}},
    }
    text = advice.page(found)
    assert (
        "Mean regret 2.67 points, the largest 5.00. Of 2 federations in which training alone is as good,\n1 were"
        in text
    )


def test_settings_and_methods_whose_folders_are_gone_stay_in_the_file(tmp_path):
    path = tmp_path / "judge.json"
    path.write_text(json.dumps({"heart": {"local": "old"}, "har": {"local": "old", "fedrep": "old"}}))
    fresh = {"har": {"fedrep": "new", "ditto": "new"}, "cifar10-classes": {"local": "new"}}
    assert list(judge.merged(path, fresh).items()) == [
        ("cifar10-classes", {"local": "new"}),
        ("har", {"local": "old", "fedrep": "new", "ditto": "new"}),
        ("heart", {"local": "old"}),
    ]


def test_a_method_that_ran_in_one_setting_only_does_not_take_the_others_out_of_the_ranking():
    some = {name: runs(*[[score, score]] * 5) for name, score in (("local", 0.5), ("fedrep", 0.7), ("tailor", 0.8))}
    found = {"har": some, "cifar10-classes": {**some, "ditto": runs(*[[0.6, 0.6]] * 5)}}
    ranked = judge.whole_ranking(found)
    assert list(ranked.names) == ["tailor", "fedrep", "local"]
    assert ranked.blocks == 10
