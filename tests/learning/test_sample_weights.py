"""Weights of samples: by hand, as repeated samples, as no weights, and never lost without a word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Protocol
from fedtailor.data.client_data import Split
from fedtailor.data.task import Task
from fedtailor.engines.worker import Worker
from fedtailor.learning import Client
from fedtailor.learning.samples import Samples
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP

WEIGHTS = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0, 0.0, 2.0])  # of the second client's 7 samples
NET = MLP(hidden=(6,))


def client_of(federation: Federation, weight: torch.Tensor | None, split: Split | None = None, **settings) -> Client:
    second = federation.clients[1]
    train = replace(second.train if split is None else split, weight=weight)
    federation = replace(federation, clients=[federation.clients[0], replace(second, train=train)])
    protocol = Protocol(**{"dtype": "float64", "batch": 100, "lr": 0.1, **settings})
    return Worker(federation, FedRep(), NET, None, protocol)._client(1, 1, "fit")


def softplus(v: float) -> float:
    return float(np.log1p(np.exp(-abs(v))) + max(v, 0.0))


def test_the_loss_of_each_task_by_hand():
    w = torch.tensor([2.0, 0.5, 0.0], dtype=torch.float64)
    logits = torch.tensor([[0.3, -1.2], [0.7, 0.1], [5.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([1, 0, 1])
    wrong = [softplus(0.3 + 1.2), softplus(0.1 - 0.7)]  # −log p of a class of two is softplus of the other's lead
    found = Task((2,), 2).loss(logits, y, None, w).item()
    assert found == pytest.approx((2 * wrong[0] + 0.5 * wrong[1]) / 2.5, abs=1e-12)
    balanced = torch.tensor([3.0, 0.1], dtype=torch.float64)  # of classes: multiplied
    found = Task((2,), 2).loss(logits, y, balanced, w).item()
    assert found == pytest.approx((0.2 * wrong[0] + 1.5 * wrong[1]) / 1.7, abs=1e-12)
    found = Task((2,), 2, kind="binary").loss(logits[:, :1], y, balanced, w).item()
    assert found == pytest.approx((0.2 * softplus(-0.3) + 1.5 * softplus(0.7)) / 1.7, abs=1e-12)
    rows = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    labels = [4 * softplus(-0.3) + softplus(-1.2), softplus(0.7) + softplus(0.1)]
    positives = torch.tensor([4.0, 9.0], dtype=torch.float64)
    found = Task((2,), 2, kind="multilabel").loss(logits, rows, positives, w).item()
    assert found == pytest.approx((2 * labels[0] / 2 + 0.5 * labels[1] / 2) / 2.5, abs=1e-12)
    found = Task((2,), 2, kind="regression").loss(logits, rows, None, w).item()
    assert found == pytest.approx((2 * (0.49 + 1.44) / 2 + 0.5 * (0.49 + 0.01) / 2) / 2.5, abs=1e-12)


@pytest.mark.parametrize("part", ["all", "head", "body"])
@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}, {"class_weights": (1.0, 5.0, 0.3)}])
def test_whole_weights_are_repeated_samples(federation, part, settings):
    own = federation.clients[1].train
    repeated = own.subset(torch.arange(7).repeat_interleave(WEIGHTS.long()))
    found, expected = client_of(federation, WEIGHTS, **settings), client_of(federation, None, repeated, **settings)
    nets = [client.net() for client in (found, expected)]
    for client, net in zip((found, expected), nets, strict=True):
        client.train(getattr(net, part), epochs=5)
    torch.testing.assert_close(nets[0].all.vector, nets[1].all.vector, rtol=0, atol=1e-12)
    assert found.losses == pytest.approx(expected.losses, abs=1e-12)
    unweighted = client_of(federation, None, **settings)
    net = unweighted.net()
    unweighted.train(getattr(net, part), epochs=5)
    assert not torch.allclose(net.all.vector, nets[0].all.vector)


@pytest.mark.parametrize("ready", [True, False])
def test_batches_carry_their_weights_and_those_that_weigh_nothing_are_left_out(federation, ready):
    split = replace(federation.clients[1].train, weight=WEIGHTS)
    samples = Samples(split, federation, Protocol(), ready=ready)
    weight_of = {tuple(row.tolist()): w for row, w in zip(split.x, WEIGHTS.tolist(), strict=True)}
    batches = list(samples.batches(1, 2, torch.Generator().manual_seed(0)))
    assert len(batches) == 2 * 5  # two of seven weigh nothing
    for x, y in batches:
        assert y.sample_weights.tolist() == [weight_of[tuple(row.tolist())] for row in x]
    some = samples.subset(torch.tensor([3, 1]))
    assert some.weights.tolist() == some.y.sample_weights.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("ready", [True, False])
def test_steps_end_where_no_sample_counts(federation, ready):
    split = replace(federation.clients[1].train, weight=torch.zeros(7))
    samples = Samples(split, federation, Protocol(), ready=ready)
    assert list(samples.batches(2, 10**9, torch.Generator())) == []


def test_labels_that_lost_their_weights_are_refused(federation):
    client = client_of(federation, WEIGHTS)
    net = client.net()
    x, y = next(iter(client.batches(1)))
    assert torch.isfinite(client.loss(net(x), y))
    with pytest.raises(FedTailorError, match="labels reached the loss without theirs"):
        client.loss(net(x), y[:])
    assert client_of(federation, None).loss(net(x), y[:]).item() == pytest.approx(F.cross_entropy(net(x), y).item())


def test_weights_go_with_their_samples():
    split = Split(torch.arange(7.0).view(7, 1), torch.arange(7), weight=torch.arange(7.0))
    rest, held = split.held_out(3, torch.Generator().manual_seed(1))
    for part in (rest, held, rest.apart(), split.apart([6, 2]), split.subset(torch.tensor([5, 0]))):
        assert part.weight.tolist() == part.y.tolist() == part.take(torch.arange(len(part)))[:, 0].tolist()


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ([1.0, 2.0], r"shape \(2,\), but there are 3 samples"),
        ([1.0, -0.5, 1.0], "finite and not negative, but sample 1 has -0.5"),
        ([1.0, 1.0, float("nan")], "sample 2 has nan"),
    ],
)
def test_weights_that_are_none_are_refused(weight, said):
    with pytest.raises(FedTailorError, match=said):
        Split(torch.zeros(3, 1), torch.zeros(3), weight=torch.tensor(weight))


def test_scores_are_not_weighted(federation):
    from fedtailor.learning.scoring import score

    plain, heavy = client_of(federation, None), client_of(federation, WEIGHTS)
    assert score(heavy.net(), heavy.samples) == score(plain.net(), plain.samples)
