from __future__ import annotations

import numpy as np
import pytest

from fedtailor.auditing.labels import label_inference
from fedtailor.auditing.views import SERVER, View


def score(subject, entry, noise=None):
    view = subject.views[0] if noise is None else View(SERVER, (entry,), clip=1.0, noise=noise)
    return label_inference(subject, view, entry)


def test_labels_leak_from_heads_and_prototypes_more_than_from_bodies(subject_of):
    split, averaged = subject_of("pgfedsplit"), subject_of("fedavg")
    head, prototypes, body = (score(split, entry) for entry in ("head", "prototypes", "body"))
    assert prototypes.score == 1
    assert head.score > 0.95
    assert body.score < min(head.score, prototypes.score)
    assert score(averaged, "model").score > 0.95  # by the head in it
    assert head.leaks
    assert head.verdict == "yes"


def test_counts_are_read_as_they_are(subject_of):
    subject = subject_of("fedproto")
    finding = score(subject, "counts")
    assert (finding.score, finding.setting) == (1.0, "which classes it has")
    assert finding.details["clients"] == 6


def test_what_has_nothing_to_do_with_classes_is_left_out(subject_of):
    subject = subject_of("pgfedsplit")
    assert score(subject, "alpha") is None


@pytest.mark.parametrize(("method", "entry"), [("fedavg", "model"), ("fedrep", "body")])
def test_it_fails_with_noise(subject_of, method, entry):
    subject = subject_of(method)
    plain, noised = score(subject, entry), score(subject, entry, noise=1.0)
    assert noised.score < plain.score
    assert noised.low < 0.5 < noised.high
    assert noised.verdict == "not by this attack"


def test_where_all_have_all_classes_it_is_asked_who_has_more(subject_of):
    subject = subject_of("fedavg", partition="iid", clients=4)
    assert (subject.federation.label_counts > 0).all()
    finding = score(subject, "model")
    assert finding.setting == "which classes it has more of"
    assert np.isfinite(finding.score)
