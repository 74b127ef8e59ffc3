"""Private steps: who is drawn, what the noise is, and what a client may not do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.learning import Client, Server
from fedtailor.learning.private_steps import NamedDraws, PrivateSteps
from fedtailor.nets.mlp import MLP


def steps(**other) -> PrivateSteps:
    fields = {"clip": 0.5, "noise": 3.0, "samples": 40, "batch": 10, "left": 10**6}
    return PrivateSteps(**{**fields, **other}, draws=NamedDraws(torch.Generator().manual_seed(1)))


def test_each_sample_is_drawn_with_the_same_chance_and_alone() -> None:
    drawn = torch.zeros(2000, 40)
    for k, rows in enumerate(steps().drawn(2000)):
        drawn[k, rows] = 1
    assert abs(drawn.mean() - 0.25) < 4 * (0.25 * 0.75 / drawn.numel()) ** 0.5
    sizes = drawn.sum(1)  # of independent draws, their variance is nq(1 − q)
    assert abs(sizes.var() - 40 * 0.25 * 0.75) < 0.8
    assert sizes.min() < 5 < 15 < sizes.max()


def test_fewer_samples_than_a_batch_are_all_drawn() -> None:
    few = steps(samples=7)
    assert few.expected == 7
    assert all(len(rows) == 7 for rows in few.drawn(5))


def test_the_noise_has_the_variance_that_is_accounted() -> None:
    total = torch.linspace(-1, 1, 200_000, dtype=torch.float64)
    noise = steps().release(total) - total
    assert abs(noise.mean()) < 4 * 1.5 / len(total) ** 0.5
    assert abs(noise.std() / (3.0 * 0.5) - 1) < 4 / (2 * len(total)) ** 0.5
    assert abs(np.mean(np.abs(noise.numpy()) < 1.5) - 0.6827) < 0.005  # of a Gaussian


def test_sums_are_divided_by_the_expected_size_of_a_batch() -> None:
    silent = steps(noise=0.0)
    for _ in silent.drawn(3):
        assert torch.equal(silent.gradient(torch.tensor([20.0])), torch.tensor([2.0]))


def test_a_batch_is_looked_at_once() -> None:
    once = steps()
    next(once.drawn(1))
    once.gradient(torch.zeros(3))
    with pytest.raises(FedTailorError, match="one step per batch"):
        once.gradient(torch.zeros(3))


def test_no_more_steps_than_are_left() -> None:
    poor = steps(left=4)
    assert len(list(poor.drawn(3))) == 3
    assert len(list(poor.drawn(3))) == 1
    assert (poor.taken, poor.left) == (4, 0)


def client_of(federation: Federation, **settings) -> Client:
    run = Simulation(federation, "fedavg", MLP(hidden=(4,)), engine="inline", fast="off", batch=4, **settings)
    client = run.worker._client(0, 1, "fit")
    client.private = steps(samples=len(client.samples), batch=4, noise=0.0, clip=1e9)
    return client


def test_without_clip_and_noise_a_step_is_that_of_the_drawn_mean(federation: Federation) -> None:
    client = client_of(federation)
    net, plain = client.net(), client.net("plain")
    rng = torch.Generator().manual_seed(1)
    rows = (torch.rand(12, generator=rng, dtype=torch.float64) < 4 / 12).nonzero()[:, 0]
    x, y = client.samples.take(rows), client.samples.y[rows]
    loss = client.loss(plain(x), y) * len(rows) / 4
    expected = plain.all.weights.detach() - 0.05 * plain.all.gradient(loss)
    assert client.private is not None
    client.private.left = 1
    client.train(net.all)
    torch.testing.assert_close(net.all.weights.detach(), expected)


def test_samples_and_classes_weigh_by_themselves(federation: Federation) -> None:
    task = Simulation(federation, "local").federation.task
    rng = torch.Generator().manual_seed(1)
    outputs, y = torch.randn(6, 3, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2])
    of_class, of_sample = torch.tensor([1.0, 2.0, 4.0]), torch.arange(6.0)
    plain = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
    torch.testing.assert_close(task.losses(outputs, y, of_class, of_sample), plain * of_class[y] * of_sample)


def test_what_private_steps_cannot_protect_is_refused(federation: Federation) -> None:
    client = client_of(federation)
    net = client.net()

    def own_loop() -> None:
        for x, y, step in client.steps(client.batches(), net.all):
            step(client.loss(net(x), y))

    with pytest.raises(FedTailorError, match="gradient of each sample"):
        own_loop()
    with pytest.raises(FedTailorError, match="all of them and as they are"):
        client.train(net.head, on=(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)))
    with pytest.raises(FedTailorError, match="the run's own size"):
        client.batches(size=3)
    client.samples = client.split(0.5)[0]
    with pytest.raises(FedTailorError, match="all samples of a client"):
        client.train(net.all)


def test_a_loss_of_a_methods_own_sees_one_sample_at_a_time(federation: Federation) -> None:
    client = client_of(federation)
    seen: list[int] = []

    def loss(net, x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return client.loss(net(x), y)

    client.train(client.net().all, loss=loss)
    assert set(seen) == {1}


def test_a_server_takes_plain_steps(federation: Federation) -> None:
    server: Server = Simulation(federation, "fedavg").server
    assert server.private is None
