"""With privacy, what leaves a site beside its payload needs a rule of its own."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor import Config, FedTailorError
from fedtailor.data.sites import SiteDescription
from fedtailor.deploy.policy import Policy, agreed, asked
from fedtailor.deploy.site import described, leaving
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.messages import read_outcome, write_outcome
from fedtailor.engines.work import Work
from fedtailor.learning.scoring import Score
from fedtailor.privacy.rules import Privacy

FULL = Outcome({"body": torch.ones(3)}, 17, 0.5, Score(3, 4, 1.0, {"accuracy": 0.75}), {"alpha": 0.1, "diverged": 1.0})
SITE = SiteDescription(0, "north", 17, 4)
DP = {"body": "dp", "epsilon": 2}


def test_without_privacy_everything_leaves_as_before():
    assert leaving(FULL, Work.FIT, None) is FULL
    assert described(SITE, None) is SITE


def test_what_has_no_rule_stays():
    left = leaving(FULL, Work.FIT_AND_SCORE, Privacy.read(DP))
    assert (left.samples, left.score, left.logged) == (1, None, {})
    assert math.isnan(left.loss)
    assert left.up is FULL.up
    site = described(SITE, Privacy.read(DP))
    assert (site.train, site.test) == (1, 0)
    message = write_outcome(left)
    assert set(message["numbers"]) == {"samples", "loss"}
    assert not message["logged"]
    assert read_outcome(message, "cpu").samples == 1


@pytest.mark.parametrize("channel", ["samples", "loss", "scores", "logged"])
def test_a_rule_of_its_own_lets_a_channel_out(channel):
    left = leaving(FULL, Work.FIT_AND_SCORE, Privacy.read({**DP, channel: "plain"}))
    field = {"scores": "score"}.get(channel, channel)
    assert getattr(left, field) == getattr(FULL, field)
    others = {"samples": 1, "score": None, "logged": {}}
    assert all(getattr(left, name) == value for name, value in others.items() if name != field)


def test_a_hello_needs_a_rule():
    hello = Outcome({"labels": torch.ones(3)})
    with pytest.raises(FedTailorError, match=r"privacy.hello=plain"):
        leaving(hello, Work.HELLO, Privacy.read(DP))
    assert leaving(hello, Work.HELLO, Privacy.read({**DP, "hello": "plain"})).up is hello.up
    assert leaving(Outcome(), Work.HELLO, Privacy.read(DP)).up == {}


def config(*words: str) -> Config:
    return Config.load(words=["data=digits", "method=fedrep", "net=mlp", *words])


def test_the_rules_travel_and_a_site_holds_the_server_to_them():
    private = config("privacy.body=dp", "privacy.epsilon=2", "privacy.scores=plain")
    assert agreed(asked(private), {"data": {"name": "digits"}}).privacy == private.privacy
    policy = Policy.for_run(private)
    assert policy.rules == ("body=dp", "scores=plain")
    policy.check(private)
    policy.check(config("privacy.body=dp", "privacy.epsilon=2"))  # refuses scores, which is fine
    with pytest.raises(FedTailorError, match=r"privacy.body is plain in this run, and this site asks for dp"):
        policy.check(config())
    with pytest.raises(FedTailorError, match=r"privacy.body is plain"):
        policy.check(config("privacy.body=plain"))
    assert Policy.for_run(config()).rules == ()
