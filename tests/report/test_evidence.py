"""The page of verdicts shows the numbers of evidence.json."""

from __future__ import annotations

import json

import pytest

from fedtailor.papers.claims.evidence import ArmResult, ClaimEvidence, Compared, Cost, Evidence, ProtocolRun
from fedtailor.report.evidence import as_page, leads_chart, listing, plan_listing, write_evidence


@pytest.fixture
def evidence() -> Evidence:
    decided = Compared(
        arm="FedAH",
        against="FedRep",
        published=10.12,
        seeds=[0, 1],
        leads=[1.5, 2.5],
        lead=2.0,
        low=0.75,
        high=3.25,
        better=0.8,
        worse=0.15,
        gains=(0.1, 0.2),
        verdict="holds",
    )
    about = {
        "paper": "fedah",
        "source": "Table IV",
        "protocol": "tiny",
        "full": "fedah/table4: CIFAR100",
        "metric": "accuracy",
        "within": None,
        "decides": "Both rivals.",
        "changed": "λ = 1, after a pilot.",
        "found": "",
        "arms": [],
        "rank_correlation": 0.83,
    }
    done = ClaimEvidence(
        **about,
        name="fedah/a@tiny",
        says="It is ahead.",
        verdict="holds",
        comparisons=[decided],
        cost=Cost(runs=4, finished=4, seconds=7200.0),
    )
    missing = ClaimEvidence(
        **about | {"rank_correlation": None},
        name="fedah/b@tiny",
        says="It is cheap.",
        verdict="open",
        comparisons=[Compared(arm="FedAH", against="FedALA", published=None, why_open="not run")],
        cost=Cost(runs=10, finished=0, seconds=0.0, seconds_left=5400.0, seconds_per_round=1.25),
    )
    protocols = {"tiny": ProtocolRun(title="digits", overrides="data=digits", changed="More rounds.")}
    return Evidence(claims=[done, missing], protocols=protocols, runs=14, finished=4, seconds=7200.0)


def test_the_page_has_verdict_lead_interval_and_what_is_missing(evidence):
    page = as_page(evidence)
    for piece in (
        "| tiny | **holds** | +2.00 (+0.75 to +3.25) over FedRep |",
        "| +2.00 | +0.75 to +3.25 | +1.5 +2.5 | +10.12 | 80 % / 15 % | +0.1 / +0.2 |",
        "4 of 14 runs are finished; they took 2.0 hours by the clock",
        "Missing: 10 of 10 runs, 1.25 seconds per round, about 1.5 hours of one core.",
        "fedah/table4: CIFAR100 | tiny | 0.83 |",
        "Verdicts: holds 1, does not 0, open 1.",
        "`data=digits`\n\n  Changed: More rounds.",
    ):
        assert piece in page
    assert page.count("Changed: λ = 1, after a pilot.") == 1  # once per paper


def test_the_page_says_that_no_table_was_run_whole(evidence):
    page = as_page(evidence.model_copy(update={"claims": evidence.claims[1:]}))
    assert "No table was run with all of its methods yet." in page
    assert "For somebody who has to choose" not in page


def test_the_choice_bolds_the_best_and_marks_those_that_are_not_surely_behind(evidence):
    by_seed = {
        "FedAH": [90.0, 91.0, 92.0, 93.0, 94.0],
        "FedRep": [89.0, 92.0, 91.0, 94.0, 92.0],  # behind by 1, -1, 1, -1, 2: may be chance
        "Local": [80.0, 81.0, 82.0, 83.0, 84.0],
        "own head (0)": [99.0] * 5,  # a variant, not a method
        "FedALA": [99.0] * 4,  # a seed is missing
    }
    arms = [ArmResult(arm=name, overrides=[], means=dict(enumerate(means))) for name, means in by_seed.items()]
    first = evidence.claims[0].model_copy(update={"arms": arms})
    page = as_page(evidence.model_copy(update={"claims": [first]}))
    assert "| method | tiny | among the best |" in page
    assert "| FedAH | **92.0 ± 1.6** | 1 of 1 |" in page
    assert "| FedRep | 91.6 ± 1.8 ≈ | 1 of 1 |" in page
    assert "| Local | 82.0 ± 1.6 | 0 of 1 |" in page
    assert "Never among them: Local." in page
    assert "FedALA |" not in page
    assert "in percent: FedAH 91.50 ± 1.29; FedRep 91.50 ± 2.08;" in page  # seeds 0 to 3, which all arms have


def test_lists_for_the_terminal(evidence):
    assert [row[:2] for row in listing(evidence).rows] == [("fedah/a@tiny", "holds"), ("fedah/b@tiny", "open")]
    assert plan_listing(evidence, 2).rows[1] == ("fedah/b@tiny", "0/10", "1.25", "1.5")


def test_files_are_written_and_a_forest_has_one_line_per_comparison(evidence, tmp_path):
    page, data, picture = write_evidence(evidence, tmp_path)
    assert Evidence.model_validate(json.loads(data.read_text())) == evidence
    assert page.read_text() == as_page(evidence)
    assert picture.name == "evidence-fedah.png"
    assert len(leads_chart(evidence.claims).names) == 1
