from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor.auditing import inversion
from fedtailor.auditing.inversion import ROUND, correlations, first_layer, gradient_inversion
from fedtailor.auditing.views import SERVER, View


def noised(entry: str, noise: float) -> View:
    return View(SERVER, (entry,), clip=1.0, noise=noise)


@pytest.mark.parametrize(("method", "entry"), [("fedavg", "model"), ("fedrep", "body")])
def test_one_sample_is_read_off_a_linear_layer(subject_of, method, entry):
    subject = subject_of(method)
    finding, pairs = gradient_inversion(subject, subject.views[0], entry, 1)
    assert finding.score > 0.999
    assert finding.low > finding.chance
    assert finding.verdict == "yes"
    client = subject.clients[0]
    x, _ = subject.samples(subject.federation.clients[client].train)
    assert min(np.abs(pairs[0].found - pair.true).max() for pair in pairs) < 1e-3
    assert any(np.allclose(pair.true, row) for pair in pairs for row in x.numpy())  # they are true samples


def test_small_batches_are_read_off_and_a_whole_round_is_not_the_samples_themselves(subject_of):
    subject = subject_of("fedavg")
    four, _ = gradient_inversion(subject, subject.views[0], "model", 4)
    whole, _ = gradient_inversion(subject, subject.views[0], "model", ROUND)
    assert four.score > 0.95
    assert whole.score < four.score
    assert four.chance > 0.7  # as many guesses as neurons


def test_it_fails_more_and_more_with_noise(subject_of):
    subject = subject_of("fedavg")
    scores = [gradient_inversion(subject, noised("model", noise), "model", 1)[0] for noise in (0, 1e-3, 1)]
    assert scores[0].score > 0.999 > scores[1].score > scores[2].score
    assert scores[2].verdict == "not by this attack"


def test_samples_are_sought_through_convolutions(subject_of, monkeypatch):
    monkeypatch.setattr(inversion, "STEPS", 100)
    subject = subject_of("fedavg", "cnn", rounds=1, **{"net.conv1": 6, "net.conv2": 6})
    assert first_layer(subject) is None
    finding, pairs = gradient_inversion(subject, subject.views[0], "model", 1, until=0.0)
    assert len(pairs) == finding.details["victims"] == 2  # the time was over
    assert finding.score > finding.chance + 0.2


def test_nothing_is_read_off_what_is_no_weights_or_no_body(subject_of):
    subject = subject_of("fedproto")
    assert gradient_inversion(subject, subject.views[0], "means", 1) is None
    assert gradient_inversion(subject, subject.views[0], "counts", 4) is None


def test_the_run_is_not_changed_by_an_attack(subject_of):
    subject = subject_of("fedrep")
    before = {name: tensor.clone() for name, tensor in subject.simulation.state(0).items()}
    gradient_inversion(subject, subject.views[0], "body", 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in subject.simulation.state(0).items())


def test_correlations_are_pearsons():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 7)), rng.normal(size=(2, 7))
    expected = np.corrcoef(a, b)[:3, 3:]
    np.testing.assert_allclose(correlations(torch.tensor(a), torch.tensor(b)).numpy(), expected, atol=1e-12)
    assert correlations(torch.ones(1, 4), torch.rand(1, 4)).item() == 0
