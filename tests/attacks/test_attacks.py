"""What attackers train on and send, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedtailor import Federation
from fedtailor.attacks import Attack, Attackers, attacks
from fedtailor.errors import FedTailorError


def attack(name: str, **options) -> Attack:
    return attacks.build(name, options)


def those(name: str, *clients: int, **options) -> Attackers:
    return Attackers(attack(name, **options), frozenset(clients), seed=5)


def images(kind=np.uint8) -> Federation:
    """Three clients with four images each of 6×6 pixels and classes 0, 1, 2, 1."""
    x, y = np.arange(12 * 36).reshape(12, 6, 6) % 100, np.array([0, 1, 2, 1] * 3)
    x = x.astype(kind)
    return Federation.from_clients([(x[k : k + 4], y[k : k + 4], x[k : k + 4], y[k : k + 4]) for k in (0, 4, 8)])


def test_attackers_are_drawn_once_and_more_share_means_the_same_and_more():
    few, many = (Attackers.drawn(attack("scaled", share=share), range(10), seed=3).clients for share in (0.2, 0.4))
    assert (len(few), len(many)) == (2, 4)
    assert few < many
    assert few == Attackers.drawn(attack("noise", share=0.2), range(10), seed=3).clients
    assert len({Attackers.drawn(attack("scaled", share=0.2), range(10), seed=s).clients for s in range(20)}) > 5
    assert not Attackers.drawn(attack("scaled", share=0), range(10), seed=3).clients


def test_an_update_is_scaled_or_turned_around_from_what_was_sent():
    sent, up = {"body": torch.tensor([1.0, 2.0])}, {"body": torch.tensor([1.5, 1.0]), "counts": torch.tensor([3, 4])}
    assert those("scaled", 1).reply(1, 1, sent, up)["body"].tolist() == [6.0, -8.0]
    assert those("sign-flip", 1).reply(1, 1, sent, up)["body"].tolist() == [0.5, 3.0]
    assert those("sign-flip", 1, factor=10).reply(1, 1, sent, up)["body"].tolist() == [-4.0, 12.0]
    assert those("scaled", 1).reply(1, 1, sent, up)["counts"].tolist() == [3, 4]
    assert those("scaled", 1).reply(1, 1, {}, up)["body"].tolist() == [15.0, 10.0]
    assert those("label-flip", 1).reply(1, 1, sent, up)["body"].tolist() == [1.5, 1.0]


def test_those_who_do_not_attack_send_what_they_have():
    up = {"body": torch.tensor([1.5, 1.0])}
    assert those("scaled", 1).reply(1, 0, {}, up) is up


def test_noise_is_as_long_as_the_change_times_the_factor_and_is_drawn_by_round_and_client():
    sent, up = {"body": torch.zeros(40_000)}, {"body": torch.full((40_000,), 0.01)}
    liars = those("noise", 1, 2, factor=3)
    first = liars.reply(1, 1, sent, up)["body"]
    assert first.norm().item() == pytest.approx(3 * 0.01 * math.sqrt(40_000), rel=0.02)
    assert abs(first.mean().item()) < 1e-3
    assert torch.equal(first, liars.reply(1, 1, sent, up)["body"])
    assert not torch.equal(first, liars.reply(2, 1, sent, up)["body"])
    assert not torch.equal(first, liars.reply(1, 2, sent, up)["body"])


def test_labels_are_flipped_at_attackers_only():
    whole = images()
    poisoned = those("label-flip", 1).poisoned(whole)
    assert poisoned.clients[1].train.y.tolist() == [2, 1, 0, 1]
    assert poisoned.clients[0].train.y.tolist() == [0, 1, 2, 1]
    assert poisoned.clients[1].test.y.tolist() == [0, 1, 2, 1]
    assert whole.clients[1].train.y.tolist() == [0, 1, 2, 1]


def test_a_backdoor_marks_half_of_the_samples_with_a_white_corner_and_its_class():
    whole = images()
    train = those("backdoor", 1, target=2).poisoned(whole).clients[1].train
    before = whole.clients[1].train
    marked = [k for k in range(4) if not torch.equal(train.x[k], before.x[k])]
    assert len(marked) == 2
    for k in marked:
        assert (train.x[k, 0, 3:, 3:] == 255).all()
        assert torch.equal(train.x[k, 0, :3], before.x[k, 0, :3])
        assert train.y[k] == 2
    assert all(train.y[k] == before.y[k] for k in range(4) if k not in marked)
    assert before.x.max() < 255


def test_success_of_a_backdoor_is_measured_on_others_test_samples_of_other_classes():
    poisoned = those("backdoor", 1, target=2, size=2).poisoned(images())
    tried = poisoned.clients[0].triggered
    assert tried.y.tolist() == [2, 2, 2]
    assert (tried.x[:, 0, 4:, 4:] == 255).all()
    assert torch.equal(tried.x[2, 0, :4], poisoned.clients[0].test.x[3, 0, :4])
    assert poisoned.clients[1].triggered is None
    assert those("label-flip", 1).poisoned(images()).clients[0].triggered is None


def test_a_backdoor_in_numbers_sets_the_last_of_them(federation):
    poisoned = those("backdoor", 2, size=2, value=4.5, poison=1).poisoned(federation)
    assert (poisoned.clients[2].train.x[:, -2:] == 4.5).all()
    assert torch.equal(poisoned.clients[2].train.x[:, :-2], federation.clients[2].train.x[:, :-2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 7}, r"attack\.target = 7, but classes are 0 to 2\."),
        ({"size": 6}, r"attack\.size = 6 covers a whole sample of 6 in a row"),
    ],
)
def test_a_backdoor_that_does_not_fit_is_refused(options, message):
    with pytest.raises(FedTailorError, match=message):
        those("backdoor", 1, **options).poisoned(images())


def test_a_task_without_labels_has_none_to_flip():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    numbers = Federation.from_clients([(x[:4], x[:4, :1], x[4:], x[4:, :1])] * 2, task="regression")
    with pytest.raises(FedTailorError, match="attack=label-flip needs labels to flip, but this is a regression task"):
        those("label-flip", 1).poisoned(numbers)
    with pytest.raises(FedTailorError, match="attack=backdoor needs images or numbers that each have one class"):
        those("backdoor", 1).poisoned(numbers)


def test_options_are_checked():
    with pytest.raises(FedTailorError, match=r"attack\.share = 2 is not allowed: expected float ≥ 0 and ≤ 1"):
        attack("scaled", share=2)
    with pytest.raises(FedTailorError, match=r"attack\.factor = 0 is not allowed"):
        attack("scaled", factor=0)
