from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor.auditing.audit import about
from fedtailor.auditing.measurements import units
from fedtailor.auditing.sample_canaries import _planted, _promised, _with, sample_canaries


def test_a_model_that_overfits_betrays_canary_samples(subject_of):
    subject = subject_of(
        "local", rounds=1, epochs=25, lr=0.1, **{"data.fraction": 0.3, "clients": 3, "partition": "iid"}
    )
    finding = sample_canaries(subject)
    assert finding.entry == "personal model"
    assert finding.details["correct"] > 0.8 * finding.details["guesses"]
    assert 0 < finding.score <= finding.high


def test_canaries_have_wrong_labels_and_are_added_to_their_client(subject_of):
    subject = subject_of("fedavg")
    for client, split in _planted(subject, np.random.default_rng(0)).items():
        held = subject.strangers(client)[1]
        assert (split.y != held.y[: len(split)]).all()
        data = subject.federation.clients[client]
        both = _with(data, split.apart([0]))
        assert len(both.train) == len(data.train) + 1
        assert torch.equal(both.train.x[-1], split.x[0])
        assert torch.equal(both.train.x[:-1], data.train.apart().x)


def test_too_few_samples_are_left_out(subject_of):
    subject = subject_of("fedavg", rounds=1, **{"data.fraction": 0.1, "clients": 2, "partition": "iid"})
    assert sample_canaries(subject) is None


PRIVATE = {"data.fraction": 0.3, "clients": 3, "partition": "iid", "batch": 20, "privacy.sample_epsilon": 2}


def test_a_run_with_private_steps_is_done_again_and_keeps_to_its_epsilon(subject_of):
    subject = subject_of("fedavg", rounds=1, lr=0.5, **PRIVATE)
    assert [unit.name for unit in units(subject)] == ["lower bound on ε from canary samples, the run done again"]
    finding = sample_canaries(subject)
    largest = max(own.epsilon for own in subject.simulation.worker.budgets.values())
    assert finding.promised == pytest.approx(largest)  # the run's δ is that of the bound
    assert 1.9 < finding.promised <= 2
    assert finding.score < finding.promised
    assert about(subject, "")["samples"] == {"epsilon": largest, "delta": 1e-5}


def test_personal_models_that_train_without_noise_have_no_promise(subject_of):
    subject = subject_of("ditto", run=False, rounds=1, **PRIVATE)
    assert _promised(subject) is None
