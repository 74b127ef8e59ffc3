from __future__ import annotations

import pytest

from fedtailor.auditing.membership import PERSONAL, personal_membership, reply_membership, shared_membership
from fedtailor.auditing.subject import Subject
from fedtailor.auditing.views import SERVER, View


@pytest.fixture
def overfitted(subject_of) -> Subject:
    return subject_of("fedavg", rounds=3, epochs=40, lr=0.1, **{"data.fraction": 0.1, "partition": "iid", "clients": 4})


def test_an_overfitted_model_tells_who_was_in_its_data(overfitted):
    finding = reply_membership(overfitted, overfitted.views[0], "model")
    assert finding.score > 0.65
    assert finding.low > 0.5
    assert finding.details["members"] == overfitted.federation.sizes.sum()
    assert (
        0 <= finding.details["tpr_low"] <= finding.details["tpr_at_1_percent_fpr"] <= finding.details["tpr_high"] <= 1
    )


def test_noise_hides_who_was_in_the_data(overfitted):
    noised = reply_membership(overfitted, View(SERVER, ("model",), clip=1.0, noise=1.0), "model")
    plain = reply_membership(overfitted, overfitted.views[0], "model")
    assert noised.score < plain.score
    assert noised.low < 0.5 < noised.high


def test_a_model_that_saw_nothing_tells_nothing(subject_of):
    subject = subject_of("fedavg", rounds=1, epochs=1, lr=1e-9)
    finding = shared_membership(subject, "model")
    assert finding.low < 0.5 < finding.high
    assert finding.verdict == "not by this attack"


def test_a_body_is_attacked_with_a_head_of_the_attackers_own(subject_of):
    subject = subject_of("fedrep")
    sent, replied = shared_membership(subject, "body"), reply_membership(subject, subject.views[0], "body")
    assert (
        sent.low < 0.5 < sent.high
    )  # two rounds do not overfit; a head fitted on test samples that are asked about would tell
    assert replied.low < 0.5 < replied.high
    assert shared_membership(subject_of("fedproto"), "prototypes") is None


def test_personal_models(subject_of):
    finding = personal_membership(subject_of("fedrep"))
    assert finding.entry == PERSONAL
    without = Subject(subject_of("fedrep").simulation)
    assert personal_membership(without) is None
