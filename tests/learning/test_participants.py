"""The training vocabulary: what `train`, `embed`, `batches` and `rng` promise to a method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Protocol
from fedtailor.engines.worker import Worker
from fedtailor.learning import Client
from fedtailor.learning.descent import EXPLODED, SKIPPED, UNDONE
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream


def client_of(federation: Federation, id: int = 0, net=None, round: int = 1, **settings) -> Client:
    protocol = Protocol(**{"dtype": "float64", "batch": 5, "lr": 0.1, **settings})
    return Worker(federation, FedRep(), net or MLP(hidden=(6,)), None, protocol)._client(id, round, "fit")


def test_training_a_head_on_embedded_features_equals_running_the_frozen_body_each_step(federation):
    fast, slow = client_of(federation, 2), client_of(federation, 2)
    net = fast.net()
    fast.train(net.head, epochs=3)
    other = slow.net()
    for x, y in slow.batches(3, purpose="head"):
        other.head.step(F.cross_entropy(other(x), y), 0.1)
    torch.testing.assert_close(net.head.vector, other.head.vector, rtol=0, atol=1e-12)
    assert torch.equal(net.body.vector, other.body.vector)


def test_a_loss_on_given_features_receives_the_features(federation):
    client = client_of(federation)
    net = client.net()
    seen = []

    def loss(net, z, y):
        seen.append((z, y))
        return F.cross_entropy(net.classify(z) * 2, y)

    z, y = client.embed(net)
    client.train(net.head, on=(z[:4], y[:4]), loss=loss, epochs=1)
    assert {tuple(row) for x, _ in seen for row in x.tolist()} <= {tuple(row) for row in z[:4].tolist()}
    assert seen


def test_pull_is_the_gradient_of_the_proximal_term(federation):
    client = client_of(federation, batch=100)
    net = client.net()
    centre = torch.randn(len(net.all), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before, gradient = net.all.vector, net.all.gradient(F.cross_entropy(net(client.samples.x), client.samples.y))
    client.train(net.all, epochs=1, pull=(centre, 0.3))
    torch.testing.assert_close(net.all.vector, before - 0.1 * (gradient + 0.3 * (before - centre)), rtol=0, atol=1e-12)


def test_phases_with_their_own_purpose_do_not_disturb_each_other(federation):
    alone, after = client_of(federation), client_of(federation)
    list(after.batches(2, purpose="mixing"))
    first, second = ([y.tolist() for _, y in c.batches(2, purpose="body")] for c in (alone, after))
    assert first == second
    other_round = client_of(federation, round=2)
    assert [y.tolist() for _, y in other_round.batches(2, purpose="body")] != first


def test_batches_leave_out_the_ragged_end_but_never_a_small_client(federation):
    client = client_of(federation, 1, batch=3)  # 7 samples
    batches = list(client.batches(2))
    assert [len(y) for _, y in batches] == [3, 3, 3, 3]
    rows = torch.cat([x for x, _ in batches[:2]])
    assert len({tuple(r.tolist()) for r in rows}) == 6
    small = client_of(federation, 1, batch=50)
    assert [len(y) for _, y in small.batches(1)] == [7]


def test_a_step_with_a_loss_that_is_not_finite_is_left_out_and_counted(federation):
    client = client_of(federation, batch=1)
    poisoned = client.samples.x.clone()
    poisoned[3] = float("inf")
    client.samples.x = poisoned
    net = client.net()
    before = net.all.vector
    client.train(net.all, epochs=1)
    assert torch.isfinite(net.all.vector).all()
    assert not torch.equal(net.all.vector, before)
    assert client.trouble == {SKIPPED: 1}


def test_training_that_diverges_is_undone_and_counted(federation):
    client = client_of(federation)
    net = client.net()
    before = net.all.vector
    client.train(net.all, epochs=1, loss=lambda net, x, y: net.all.parameters[0].sum() * 1e308, lr=1e308)
    assert torch.equal(net.all.vector, before)
    assert client.trouble[UNDONE] == 1


@pytest.mark.parametrize(("lr", "trouble"), [(1.0, {}), (1e6, {EXPLODED: 1})])
def test_weights_that_explode_but_stay_finite_are_counted_and_kept(federation, lr, trouble):
    client = client_of(federation)
    net = client.net()
    client.train(net.all, epochs=1, loss=lambda net, x, y: net.all.parameters[0].sum(), lr=lr)
    assert client.trouble == trouble
    assert (net.all.vector.norm() > 1e6) == bool(trouble)


def batchnorm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_a_head_phase_leaves_batchnorm_statistics_alone(federation):
    client = client_of(federation, net=batchnorm_net())
    net = client.net()
    net.local_buffers.add_(0.25)
    before, body = net.local_buffers.clone(), net.body.vector
    client.train(net.head, epochs=2)
    assert torch.equal(net.local_buffers, before)
    assert torch.equal(net.body.vector, body)
    client.train(net.body, epochs=1)
    assert not torch.equal(net.local_buffers, before)


def test_batchnorm_statistics_stay_with_their_role_at_the_client(federation):
    worker = Worker(federation, FedRep(), batchnorm_net(), None, Protocol(dtype="float64"))
    for id in (0, 1):
        payload = {"body": worker._client(id, 1, "fit").net().body.vector}
        worker.fit(id, 1, payload, evaluate=False)
    kept = [worker.state(id)["buffers.model"] for id in (0, 1)]
    assert not torch.equal(*kept)
    again = worker._client(0, 2, "fit").net()
    assert torch.equal(again.local_buffers, kept[0])


def test_averaged_batchnorm_statistics_are_part_of_the_body(federation):
    protocol = Protocol(dtype="float64", bn_buffers="average")
    worker = Worker(federation, FedRep(), batchnorm_net(), None, protocol)
    net = worker._client(0, 1, "fit").net()
    assert len(net.local_buffers) == 0
    assert len(net.body) == 5 * 6 + 6 + 2 * 6 + 2 * 6


def test_batchnorm_skips_batches_of_one(federation):
    client = client_of(federation, net=batchnorm_net(), batch=1)
    net = client.net()
    before = net.all.vector
    client.train(net.all)
    assert torch.equal(net.all.vector, before)


def test_embedding_keeps_the_order_of_samples(federation):
    client = client_of(federation, 3)
    net = client.net()
    z, y = client.embed(net)
    assert torch.equal(y, client.samples.y)
    torch.testing.assert_close(z, net.features(client.samples.x).detach(), rtol=0, atol=1e-12)


def test_images_are_normalized_alike_once_or_batch_by_batch():
    from fedtailor.learning.samples import Samples

    x = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), dtype=np.uint8)
    federation = Federation.from_clients([(x, np.arange(30) % 3)])
    split = federation.clients[0].train
    ready, lazy = (Samples(split, federation, Protocol(), ready=r) for r in (True, False))
    index = torch.tensor([5, 0, 7])
    assert torch.equal(ready.take(index), lazy.take(index))
    expected = (split.x[index].double() / 255 - 0.5) / 0.5
    torch.testing.assert_close(ready.take(index).double(), expected, rtol=1e-6, atol=1e-6)
    streams = [torch.Generator().manual_seed(4) for _ in range(2)]
    for (a, la), (b, lb) in zip(ready.batches(4, 2, streams[0]), lazy.batches(4, 2, streams[1]), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(la, lb)


def test_fresh_weights_are_the_clients_own_whatever_the_round(federation):
    first, later, other = client_of(federation), client_of(federation, round=2), client_of(federation, 1)
    assert torch.equal(first.fresh("supervisor"), later.fresh("supervisor"))
    assert not torch.equal(first.fresh("supervisor"), other.fresh("supervisor"))
    assert not torch.equal(first.fresh("supervisor"), first.net().all.vector)
    assert torch.equal(first.net().all.vector, other.net().all.vector)


def test_a_loop_puts_back_only_the_part_that_diverged(federation):
    client = client_of(federation)
    one, two = client.net("one"), client.net("two")
    before = two.all.vector
    for x, y, step in client.steps(client.batches(1), one.all, two.all):
        step(F.cross_entropy(one(x), y), one.all)
        two.all.weights = torch.full_like(before, float("nan"))
    assert torch.equal(two.all.vector, before)
    assert not torch.equal(one.all.vector, before)
    assert client.trouble == {UNDONE: 1}


def test_a_loop_trains_nets_and_leaves_out_what_batchnorm_cannot_take(federation):
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    client = client_of(federation, 1, net=module, batch=1)
    net = client.net().eval()
    assert list(client.steps(client.batches(1), net.all)) == []
    assert net.training
    sizes = [len(y) for _, y, _ in client.steps(client.batches(1, size=3), net.all)]
    assert sizes == [3, 3]


def test_only_finite_losses_are_recorded_and_stepped_on(federation):
    client = client_of(federation)
    net = client.net()
    factors = iter([1.0, float("nan"), float("inf"), 2.0])
    taken, moved = [], []
    for x, y, step in client.steps(client.batches(4, size=12), net.all):
        before = net.all.vector
        taken.append(step(F.cross_entropy(net(x), y) * next(factors)))
        moved.append(not torch.equal(net.all.vector, before))
    assert taken == moved == [True, False, False, True]
    assert len(client.losses) == 2
    assert client.trouble == {SKIPPED: 2}


def test_steps_are_counted_over_reshuffled_epochs_of_the_same_stream(federation):
    by_steps, by_epochs = client_of(federation, 1, batch=3, steps=5), client_of(federation, 1, batch=3)  # 7 samples
    taken = [(x.tolist(), y.tolist()) for x, y in by_steps.batches(purpose="all")]
    assert taken == [(x.tolist(), y.tolist()) for x, y in by_epochs.batches(3, purpose="all")][:5]
    assert [y.tolist() for _, y in by_steps.batches(1)] == [y.tolist() for _, y in by_epochs.batches(1)]
    assert [len(y) for _, y in client_of(federation, 1, batch=50, steps=3).batches()] == [7] * 3


@pytest.mark.parametrize("part", ["all", "head"])
def test_training_by_steps_by_hand(federation, part):
    client, plain = client_of(federation, 1, batch=3, steps=5), client_of(federation, 1, batch=3)
    net, other = client.net(), plain.net()
    client.train(getattr(net, part))  # a head trains on features, whose batches are made elsewhere
    batches = list(plain.batches(3, purpose=part))[:5]
    for x, y in batches:
        getattr(other, part).step(F.cross_entropy(other(x), y), 0.1)
    torch.testing.assert_close(net.all.vector, other.all.vector, rtol=0, atol=1e-12)
    assert len(client.losses) == 5
    client.train(net.head, epochs=1, purpose="phase")  # a method's own phases count epochs
    assert len(client.losses) == 7


def test_a_split_holds_out_the_same_samples_in_every_round(federation):
    first, later, other = (client_of(federation, i, round=t) for i, t in ((2, 1), (2, 9), (0, 1)))
    kept, held = first.split(0.25)
    assert (len(kept), len(held)) == (15, 5)
    order = torch.randperm(20, generator=torch_stream(0, "validation", "client", 2))
    assert torch.equal(held.x, first.samples.x[order[:5]])
    assert torch.equal(kept.x, first.samples.x[order[5:]])
    assert torch.equal(kept.y, first.samples.y[order[5:]])
    again = later.split(0.25)
    assert torch.equal(again[0].x, kept.x)
    assert torch.equal(again[1].y, held.y)
    assert [len(part) for part in other.split(0.25)] == [9, 3]


def test_a_split_of_too_few_samples_has_all_of_them_twice(federation):
    client = client_of(federation, 1)
    assert client.split(0.1) == (client.samples, client.samples)  # 0.7 of a sample
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="share"):
            client.split(share)


@pytest.mark.parametrize("part", ["all", "head"])
def test_training_on_some_samples_is_that_of_a_client_which_has_no_others(federation, part):
    settings = {"class_weights": "balanced", "momentum": 0.9}
    client, alone = client_of(federation, 2, **settings), client_of(federation, 2, **settings)
    kept, _ = client.split(0.5)
    whole = client.samples
    client.train(getattr(client.net(), part), samples=kept, epochs=3, average=2)
    assert client.samples is whole
    alone.samples = kept
    alone.train(getattr(alone.net(), part), epochs=3, average=2)
    assert torch.equal(client.nets["model"].all.vector, alone.nets["model"].all.vector)
    client.train(getattr(client.net(), part), epochs=3, average=2)
    assert not torch.equal(client.nets["model"].all.vector, alone.nets["model"].all.vector)


def test_training_on_some_samples_and_on_features_cannot_both_be_asked_for(federation):
    client = client_of(federation, 2)
    net = client.net()
    with pytest.raises(TypeError, match="not both"):
        client.train(net.head, on=client.embed(net), samples=client.samples)


def test_a_client_scores_a_net_on_samples(federation):
    client = client_of(federation, 2)
    _, held = client.split(0.25)
    net = client.net()
    score = client.score(net, held)
    assert score.total == 5
    assert score.correct == int((net(held.x).argmax(1) == held.y).sum())
    assert score.loss == pytest.approx(F.cross_entropy(net(held.x), held.y, reduction="sum").item())


def test_epochs_and_steps_cannot_both_be_asked_for():
    with pytest.raises(FedTailorError, match=r"epochs = 5 and steps = 100 both say.*Leave one out"):
        Protocol(epochs=5, steps=100)
