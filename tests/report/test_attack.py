"""What tables say of runs with attackers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtailor.analysis.results import Result
from fedtailor.report.attack import attack_notes
from fedtailor.report.tables import brief_sheet


def result(method: str, seed: int = 0, **more) -> Result:
    config = {"method": {"name": method}, "seed": seed, "rounds": 1, **more.pop("config", {})}
    costs = {"bytes_up": 1, "bytes_down": 1, "seconds_training": 1.0}
    record = {
        "round": 1,
        "phase": "round",
        "accuracy": 0.5,
        "accuracy_mean": 0.5,
        "worst_decile": 0.25,
        **costs,
        **more,
    }
    return Result(Path(method), config, [record], {"accuracy": np.array([0.5, np.nan, 0.5])}, "finished")


ATTACK = {"attack": {"name": "backdoor", "share": 0.3}, "robust": {"name": "median"}}


def test_a_note_says_who_attacks_and_that_scores_are_those_of_the_others():
    runs = [result(name, config=ATTACK, attackers=1) for name in ("fedavg", "fedrep")]
    assert attack_notes(runs) == [
        "1 of 3 clients attack (backdoor, share=0.3): all numbers are those of the others. Robust mean: median."
    ]
    assert attack_notes([result("fedavg")]) == []


def test_the_success_of_a_backdoor_has_a_column_if_there_is_one():
    sheet = brief_sheet([result("fedavg", config=ATTACK, attackers=1, backdoor_success=0.75), result("fedrep")])
    place = list(sheet.header).index("backdoor success")
    assert {row[0]: row[place] for row in sheet.rows} == {
        "fedavg (attack=backdoor, robust=median)": "75.00",
        "fedrep": "—",
    }
    assert "backdoor success" not in brief_sheet([result("fedavg")]).header
