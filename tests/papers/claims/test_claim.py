"""The files of claims name what exists, and claims share runs."""

from __future__ import annotations

import pytest

from fedtailor import Config, FedTailorError
from fedtailor.papers.claims.claim import PAPERS, _read, claims, in_order, jobs_of, named
from fedtailor.papers.presets import find


def test_every_claim_can_be_planned(tmp_path):
    everything = claims()
    assert {claim.paper for claim in everything} == set(PAPERS)
    assert len({claim.name for claim in everything}) == len(everything)
    for claim in everything:
        assert claim.says.endswith(".")
        assert claim.source
        assert claim.decides
        assert claim.seeds >= 5
        assert claim.full[1] in find(claim.full[0]).columns


def test_every_run_has_a_valid_config_and_one_folder_per_config(tmp_path):
    configs = {}
    for claim in claims():
        for arm in claim.arms:
            job = claim.job(arm, 0, tmp_path)
            configs.setdefault(job.name, set()).add(job.overrides)
            Config.load(words=job.overrides)
    assert all(len(found) == 1 for found in configs.values())


def test_claims_share_the_runs_of_arms_that_they_have_in_common(tmp_path):
    some = named(["pgfedsplit/ahead@fashion", "fedah/participation@fashion"])
    separate = sum(len(claim.jobs(tmp_path)) for claim in some)
    assert len(jobs_of(some, tmp_path)) == separate - 2 * 5  # FedRep and FedALA with five seeds


def test_published_leads_are_differences_of_published_numbers():
    ahead = named(["pgfedsplit/ahead@fashion"])[0]
    assert {c.against.name: c.published for c in ahead.comparisons} == {
        "FedRep": 0.13,
        "FedPer": 0.18,
        "FedALA": 0.11,
        "FedAvg+FT": 0.13,
    }
    order = named(["field/order@cifar10"])[0]
    assert len(order.comparisons) == 13  # all other rows of the table


def test_a_claim_may_be_several_pairs():
    alone = named(["field/alone-more@tuned"])[0]
    assert [(c.arm.name, c.against.name, c.published) for c in alone.comparisons] == [
        ("FedPAC", "Local", 0.23),
        ("Ditto", "Local", None),
        ("Local", "FedAvg", 13.94),
    ]


def test_what_was_found_belongs_to_a_protocol_of_the_claim():
    for paper in PAPERS:
        for facts in _read(paper)["claim"]:
            assert facts.get("found", {}).keys() <= facts["on"].keys(), (paper, facts["id"])


def test_an_arm_may_differ_by_protocol():
    lam = {c.protocol.name: c.comparisons[0].arm.overrides[-1] for c in named(["pgfedsplit/ahead"])}
    assert lam == {"fashion": "method.lam=0.625", "fashion-5": "method.lam=0.625", "cifar10": "method.lam=1.17"}


def test_one_claim_of_each_paper_comes_first():
    first = in_order(claims())[: len(PAPERS)]
    assert [claim.paper for claim in first] == list(PAPERS)
    assert sorted(c.name for c in in_order(claims())) == sorted(c.name for c in claims())


def test_a_name_may_be_a_paper_a_claim_or_a_claim_on_some_data():
    assert {c.paper for c in named(["fedah"])} == {"fedah"}
    assert len(named(["fedah/participation"])) == 3
    assert len(named(["fedah/participation@fashion-half"])) == 1
    with pytest.raises(FedTailorError, match="Did you mean 'fedah/weights'"):
        named(["fedah/weight"])
