"""Pieces of PGFedSplit: the schedule of heads against a trace by hand, the search for α, and the features that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedtailor import FedTailorError, Simulation
from fedtailor.learning import Reply
from fedtailor.methods.pgfedsplit import PGFedSplit
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3, "epochs": 2}
BODY, HEAD, DIMENSIONS = 5 * 6 + 6, 6 * 3 + 3, 6


def simulate(federation, method, **settings) -> Simulation:
    return Simulation(federation, method, NET, **{"rounds": 4, **SETTINGS, **settings})


def logits(head, z):
    return z @ head[:18].view(3, 6).T + head[18:]


def trace(federation, method, means):
    """Feed `aggregate` with replies of two clients whose α have the given means; for each round: delivered?, τ, s, head made?"""
    simulation = simulate(federation, method)
    server, rows = simulation.server, []
    body, head = torch.zeros(BODY).double(), torch.arange(HEAD).double()
    for t, mean in enumerate(means, start=1):
        server.begin(t)
        delivered = "head" in method.send(server, 0)
        replies = []
        for i, (samples, shift) in enumerate(((30, -0.1), (10, 0.1))):
            alpha = {"alpha": torch.tensor(mean + shift, dtype=torch.float64)} if delivered else {}
            replies.append(Reply(i, samples, {"body": body + i, "head": head + t + i, **alpha}))
        method.aggregate(server, replies)
        made = "head" in server.state
        if made:
            torch.testing.assert_close(server.state["head"], head + t + 0.25)  # of this round's heads, by samples
        assert ("alpha_mean" in server.logged) == delivered
        assert server.logged["tau"] == server.state["tau"]
        rows.append((delivered, int(server.state["tau"]), int(server.state["waited"]), made))
    return rows


def test_the_period_follows_algorithm_1(federation):
    method = PGFedSplit(tau=3, tau_min=2, tau_max=4, gaussian=False, proto_reg=False)
    means = [9, 9, 9, 0.5, 9, 0.5, 9, 0.4, 9, 9, 0.3, 9, 9, 9, 0.2, 9, 9, 9]
    assert trace(federation, method, means) == [
        # delivered, τ, s, head made
        (False, 3, 1, False),
        (False, 3, 2, False),
        (False, 3, 0, True),  # s reaches τ
        (True, 2, 1, False),  # 0.5 > 0, where the mean starts: shorter
        (False, 2, 0, True),
        (True, 2, 1, False),  # 0.5 = 0.5: as it is
        (False, 2, 0, True),
        (True, 3, 1, False),  # 0.4 < 0.5: longer
        (False, 3, 2, False),
        (False, 3, 0, True),
        (True, 4, 1, False),  # 0.3 < 0.4
        (False, 4, 2, False),
        (False, 4, 3, False),
        (False, 4, 0, True),
        (True, 4, 1, False),  # 0.2 < 0.3, but 4 is the greatest
        (False, 4, 2, False),
        (False, 4, 3, False),
        (False, 4, 0, True),
    ]


def test_a_shorter_period_takes_effect_at_once(federation):
    """Lines 16 and 23: s is compared with the τ of the same round, so τ = 1 delivers and aggregates in every round."""
    method = PGFedSplit(tau=2, tau_min=1, gaussian=False, proto_reg=False)
    assert trace(federation, method, [9, 9, 0.5, 0.6, 0.3, 9]) == [
        (False, 2, 1, False),
        (False, 2, 0, True),
        (True, 1, 0, True),
        (True, 1, 0, True),
        (True, 2, 1, False),
        (False, 2, 0, True),
    ]


@pytest.mark.parametrize("options", [{"apa": False, "tau": 2}, {"fixed_tau": 2, "tau": 7}])
def test_a_fixed_period(federation, options):
    rows = trace(federation, PGFedSplit(**options, gaussian=False, proto_reg=False), [0.9, 0.8, 0.1, 0.9, 0.3, 0.7])
    assert [tau for _, tau, _, _ in rows] == [2] * 6
    assert [delivered for delivered, *_ in rows] == [False, False, True, False, True, False]


def test_equal_shares_leave_the_period_alone_however_many_clients_reply(federation):
    method = PGFedSplit(tau=5, fixed_alpha=0.1, gaussian=False, proto_reg=False)
    simulation = simulate(federation, method, rounds=60, join=(0.25, 1.0), epochs=0).run()
    periods = [r["tau"] for r in simulation.metrics]
    assert periods == sorted(periods, reverse=True)
    assert set(periods) == {5, 4}  # the first delivery shortens it: 0.1 > 0


def test_periods_out_of_order_are_refused():
    with pytest.raises(FedTailorError, match=r"tau = 30 must lie between tau_min = 1 and tau_max = 20"):
        PGFedSplit(tau=30)
    assert PGFedSplit(tau=30, apa=False).tau == 30


# -- α --------------------------------------------------------------------------------------------------------------------------


def searched(federation, method, own, received, round=9, adapted=None, samples=None):
    """α of client 2, and the objective of Eq. 13 it should minimize."""
    simulation = simulate(federation, method)
    client = simulation.worker._client(2, round, "fit")
    client.state["head"] = own
    if adapted is not None:
        client.state["adapted"] = torch.tensor(adapted)
    net = client.net(head=own)
    z, y = samples or client.embed(net)

    def objective(*alphas):
        """At each of the alphas."""
        a = torch.tensor(alphas, dtype=torch.float64).view(-1, 1, 1)
        gap = min(round - 1 - (adapted or 0), 2 * method.tau_max)
        mine, theirs = logits(own, z), logits(received, z)
        p, q = (torch.softmax(v / method.temperature, 1) for v in (mine, theirs))
        right = torch.log_softmax(a * mine + (1 - a) * theirs, dim=2)[:, torch.arange(len(y)), y]
        return -right.mean(1) + method.beta * gap * a.view(-1) ** 2 * (p * (p / q).log()).sum(1).mean()

    return method._alpha(client, net, received, z, y), objective


@pytest.mark.parametrize("options", [{}, {"beta": 0.0}, {"beta": 1.0}, {"temperature": 3.0}, {"tau_max": 5}])
@pytest.mark.parametrize("seed", range(4))
def test_alpha_is_the_best_of_a_dense_grid(federation, options, seed):
    stream = torch.Generator().manual_seed(seed)
    own, received = torch.randn(2, HEAD, generator=stream, dtype=torch.float64)
    alpha, objective = searched(federation, PGFedSplit(**options), own, received, round=30, adapted=3)
    grid = np.linspace(0, 1, 2001)
    values = objective(*grid).numpy()
    assert alpha == pytest.approx(grid[values.argmin()], abs=5.01e-4)
    assert objective(alpha).item() <= values.min() + 1e-12


def test_a_longer_gap_gives_more_to_the_others_up_to_its_cap(federation):
    stream = torch.Generator().manual_seed(1)
    own, received = torch.randn(2, HEAD, generator=stream, dtype=torch.float64)
    method = PGFedSplit(beta=0.2, tau_max=10)
    alphas = [searched(federation, method, own, received, round=t)[0] for t in (2, 6, 21, 22, 100)]
    assert 1 >= alphas[0] > alphas[1] > alphas[2] > 0
    assert alphas[2] == alphas[3] == alphas[4]  # gaps of 20, 21 and 99


def test_a_newcomer_has_no_gap(federation):
    """It adapts outside the rounds, so nothing but its samples speaks for either head."""
    own, received = torch.randn(2, HEAD, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    late, free = (searched(federation, PGFedSplit(beta=b), own, received, round=0)[0] for b in (5.0, 0.0))
    assert 0 < late == free < 1


def test_equal_heads_and_single_class_clients_have_an_alpha(federation):
    head = torch.randn(HEAD, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert searched(federation, PGFedSplit(), head, head)[0] == 0.0
    z = torch.rand(5, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha, objective = searched(federation, PGFedSplit(), head, -head, samples=(z, torch.ones(5, dtype=torch.long)))
    assert objective(alpha) <= objective(*np.linspace(0, 1, 101)).min()


def test_alpha_of_many_samples_is_searched_on_a_named_subset(federation):
    stream = torch.Generator().manual_seed(2)
    own, received = torch.randn(2, HEAD, generator=stream, dtype=torch.float64)
    z, y = torch.rand(5000, DIMENSIONS, dtype=torch.float64), torch.randint(0, 3, (5000,))
    alpha, _ = searched(federation, PGFedSplit(), own, received, samples=(z, y))
    chosen = torch.randperm(5000, generator=torch_stream(3, "fit", 9, 2, "alpha"))[:2048]
    assert alpha == searched(federation, PGFedSplit(), own, received, samples=(z[chosen], y[chosen]))[0]


# -- what is drawn --------------------------------------------------------------------------------------------------------------


def drawn(federation, method, client=2, known=(True, True, True), batch=10):
    """The features and labels that client adds to its own, with prototypes 10, 20, 30 and deviations 1, 2, 3 in all dimensions."""
    simulation = simulate(federation, method, batch=batch)
    party = simulation.worker._client(client, 2, "fit")
    level = torch.arange(1.0, 4.0, dtype=torch.float64).unsqueeze(1).expand(3, DIMENSIONS)
    payload = {"prototypes": 10 * level, "spread": level, "known": torch.tensor(known)}
    z, y = method._augmented(party, party.net(), payload)
    own, labels = party.embed(party.net())
    assert torch.equal(z[: len(own)], own)
    assert torch.equal(y[: len(own)], labels)
    return z[len(own) :], y[len(own) :], party.label_counts


def test_labels_are_drawn_as_the_clients_own_are_and_noise_is_scaled_by_their_share(federation):
    z, y, counts = drawn(federation, PGFedSplit(ratio=0.99))
    many = len(y)
    assert many == 99 * 20
    share = counts / counts.sum()
    assert torch.allclose(torch.bincount(y, minlength=3) / many, share, atol=4 * 0.5 / math.sqrt(many))
    for c in range(3):
        noise = (z[y == c] - 10 * (c + 1)) / (c + 1)
        gamma = counts[c] / counts.max()
        assert noise.mean().abs() < 5 * gamma / math.sqrt(noise.numel())
        assert noise.std() == pytest.approx(gamma.item(), rel=5 / math.sqrt(2 * noise.numel()))


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.3, 9), (0.5, 20), (0.9, 180)])
def test_the_share_of_drawn_features_is_r(federation, ratio, count):
    assert len(drawn(federation, PGFedSplit(ratio=ratio))[1]) == count


def test_switches_of_the_drawing(federation):
    z, y, counts = drawn(federation, PGFedSplit(ratio=0.95, gamma_mode="one"))
    plain, same, _ = drawn(federation, PGFedSplit(ratio=0.95))
    assert torch.equal(y, same)
    rare = int(counts.argmin())
    assert 0 < counts[rare] < counts.max()
    mean, gamma = 10.0 * (rare + 1), counts[rare] / counts.max()
    torch.testing.assert_close((plain[y == rare] - mean) / gamma, z[y == rare] - mean)
    _, y, _ = drawn(federation, PGFedSplit(ratio=0.99, label_prior="uniform"))
    assert torch.allclose(torch.bincount(y) / len(y), torch.tensor(1 / 3), atol=0.05)
    assert drawn(federation, PGFedSplit(ratio=0.95), known=(True, True, False))[1].max() < 2
    assert len(drawn(federation, PGFedSplit(), known=(False, False, False))[1]) == 0


def test_clipping_only_lifts_negative_features(federation):
    simulation = simulate(federation, PGFedSplit(cov="full"), rounds=1).run()
    payload = simulation.method.send(simulation.server, 2)
    party = simulation.worker._client(2, 2, "fit")
    samples = [
        PGFedSplit(cov="full", clip_nonneg=clip)._augmented(
            simulation.worker._client(2, 2, "fit"), party.net(), payload
        )
        for clip in (False, True)
    ]
    assert (samples[0][0] < 0).any()
    assert torch.equal(samples[0][0].clamp(min=0), samples[1][0])
