"""PGFedSplit against a plain reference written from the equations, its switches, what travels, and its degenerate cases."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.pgfedsplit import PGFedSplit
from fedtailor.nets.mlp import MLP
from fedtailor.randomness import torch_stream

NET = MLP(hidden=[6])
SETTINGS = {"dtype": "float64", "batch": 1000, "lr": 0.1, "seed": 3, "epochs": 2}
BODY, HEAD, CLASSES, DIMENSIONS = 5 * 6 + 6, 6 * 3 + 3, 3, 6
OFF = {"gaussian": False, "proto_reg": False, "head_agg": False}


def simulate(federation, method, **settings) -> Simulation:
    return Simulation(federation, method, NET, **{"rounds": 4, **SETTINGS, **settings})


def features(body, x):
    return torch.relu(x @ body[:30].view(6, 5).T + body[30:])


def logits(head, z):
    return z @ head[:18].view(3, 6).T + head[18:]


def descend(vector, loss, steps):
    for _ in range(steps):
        leaf = vector.clone().requires_grad_()
        vector = vector - SETTINGS["lr"] * torch.autograd.grad(loss(leaf), leaf)[0]
    return vector


class Reference:
    """The algorithm as the paper writes it, with rounds from 0, on plain tensors and dictionaries."""

    def __init__(self, federation: Federation, method: PGFedSplit, body, head):
        self.data = [(c.train.x.double(), c.train.y) for c in federation.clients]
        self.m, self.body = method, body
        self.heads = dict.fromkeys(range(4), head)
        self.last = dict.fromkeys(range(4), 0)
        self.means, self.variances, self.aggregate = {}, {}, None
        self.tau, self.s, self.alpha_before = method.tau, 0, 0.0

    def round(self, t, participants):
        ups = {i: self.client(t, i) for i in participants}
        sizes = {i: len(self.data[i][1]) for i in ups}
        mean = lambda k: sum(n * ups[i][k] for i, n in sizes.items()) / sum(sizes.values())  # noqa: E731
        self.body = mean("body")
        for c in range(CLASSES):
            p = [u["prototypes"][c] for u in ups.values() if c in u["prototypes"]]
            if not p:
                continue
            self.means[c] = sum(p) / len(p)
            between = sum((q - self.means[c]) ** 2 for q in p) / max(1, len(p) - 1) + 1e-6
            squares = [u["squares"][c] for u in ups.values() if c in u["squares"]]
            total = sum(squares) / len(squares) - self.means[c] ** 2
            self.variances[c] = total if self.m.cov == "total" else between * (len(p) > 1)
        if self.aggregate is not None:
            alphas = [u["alpha"] for u in ups.values()]
            now = sum(alphas) / len(alphas)
            if self.m.apa:
                step = -1 if now > self.alpha_before else 1 if now < self.alpha_before else 0
                self.tau = min(max(self.tau + step, self.m.tau_min), self.m.tau_max)
            self.alpha_before, self.aggregate = now, None
        self.s += 1
        if self.s >= self.tau:
            self.aggregate, self.s = mean("head"), 0
        return ups

    def client(self, t, i):
        x, y = self.data[i]
        z, labels = features(self.body, x), y
        counts = torch.bincount(y, minlength=CLASSES).double()
        if self.means and self.m.gaussian:
            stream = torch_stream(SETTINGS["seed"], "fit", t + 1, i, "gaussian")
            ratio = Fraction(str(self.m.ratio))
            count = math.ceil(ratio / (1 - ratio) * len(y))
            drawn = [c for c in torch.multinomial(counts, count, True, generator=stream).tolist() if c in self.means]
            noise = torch.randn(len(drawn), DIMENSIONS, generator=stream, dtype=torch.float64)
            for c, e in zip(drawn, noise, strict=True):
                gamma = counts[c] / counts.max()
                z = torch.cat([z, (self.means[c] + gamma * self.variances[c].sqrt() * e)[None]])
            labels = torch.cat([y, torch.tensor(drawn, dtype=torch.long)])
        head, up = self.heads[i], {}
        if self.aggregate is not None:
            up["alpha"] = self.alpha(head, z, labels, t - self.last[i])
            head = up["alpha"] * head + (1 - up["alpha"]) * self.aggregate
            self.last[i] = t
        head = descend(head, lambda h: F.cross_entropy(logits(h, z), labels), SETTINGS["epochs"])
        self.heads[i] = head
        body = descend(self.body, lambda b: self.base_loss(b, head, x, y), SETTINGS["epochs"])
        z = features(body, x)
        prototypes = {c: z[y == c].mean(0) for c in y.unique().tolist()}
        squares = {c: (z[y == c] ** 2).mean(0) for c in prototypes}
        return {"body": body, "head": head, "prototypes": prototypes, "squares": squares, **up}

    def base_loss(self, body, head, x, y):
        z, total = features(body, x), 0.0
        for c, p in self.means.items():
            squared = (z[y == c] - p) ** 2
            total = total + (squared.sum() if self.m.proto_reduction == "sum" else squared.mean(1).sum())
        return F.cross_entropy(logits(head, z), y) + self.m.lam * total / len(y)

    def alpha(self, head, z, y, gap):
        def slope(a):
            a = torch.tensor(a, dtype=torch.float64, requires_grad=True)
            own, other = logits(head, z), logits(self.aggregate, z)
            p, q = torch.softmax(own, 1), torch.softmax(other, 1)
            kl = (p * (p / q).log()).sum(1).mean()
            loss = F.cross_entropy(a * own + (1 - a) * other, y) + self.m.beta * gap * a**2 * kl
            return torch.autograd.grad(loss, a)[0].item()

        return 0.0 if slope(0.0) >= 0 else 1.0 if slope(1.0) <= 0 else brentq(slope, 0, 1, xtol=1e-14)


def without_classes(federation) -> Federation:
    """Clients 0, 1 and 2 lose the class of their number, client 3 all but one."""
    parts = []
    for k, client in enumerate(federation.clients):
        left = client.train.y != k if k < 3 else client.train.y == 0
        train, test = ((s.x[m].numpy(), s.y[m].numpy()) for s, m in ((client.train, left), (client.test, slice(None))))
        parts.append((*train, *test))
    return Federation.from_clients(parts)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize(
    ("options", "join"),
    [
        ({"tau": 1, "beta": 20.0}, 1.0),
        ({"tau": 2, "apa": False, "beta": 5.0}, 1.0),
        ({"tau": 1, "gaussian": False, "beta": 20.0, "lam": 0.3, "proto_reduction": "sum"}, 1.0),
        ({"tau": 2, "cov": "total", "ratio": 0.4, "tau_min": 2, "beta": 5.0}, 0.5),
        ({"tau": 1, "beta": 20.0}, 0.25),
    ],
)
def test_whole_rounds_by_hand(federation, options, join, absent):
    method = PGFedSplit(**options)
    federation = without_classes(federation) if absent else federation
    simulation = simulate(federation, method, join=join, rounds=6)
    net = simulation.server.net()
    reference = Reference(federation, method, net.body.vector, net.head.vector)
    seen = set()
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-9)  # noqa: E731
    for t in range(6):
        sent, known, aggregate = reference.body, dict(reference.means), reference.aggregate
        simulation.step()
        ups = reference.round(t, simulation.traffic.up)
        for i, up in ups.items():
            down, told = simulation.traffic.down[i], simulation.traffic.up[i]
            close(down["body"], sent)
            assert ("head" in down) == ("alpha" in told) == (aggregate is not None)
            if aggregate is not None:
                close(down["head"], aggregate)
                assert told["alpha"].item() == pytest.approx(up["alpha"], abs=1e-9)
                assert simulation.outcomes[i].logged == {"alpha": told["alpha"].item()}
                seen.add(up["alpha"])
            for c, p in known.items():
                close(down["prototypes"][c], p)
            close(told["body"], up["body"])
            close(told["head"], up["head"])
            close(simulation.state(i)["head"], up["head"])
            assert told["classes"].tolist() == [c in up["prototypes"] for c in range(CLASSES)]
            for c, p in up["prototypes"].items():
                close(told["prototypes"][c], p)
        state = simulation.server.state
        close(state["body"], reference.body)
        assert state["known"].tolist() == [c in reference.means for c in range(CLASSES)]
        assert (int(state["tau"]), int(state["waited"])) == (reference.tau, reference.s)
        for c in reference.means if method.gaussian else ():
            close(state["spread"][c] ** 2, reference.variances[c])
    assert any(0 < a < 1 for a in seen)  # the search had something to find


def results(simulation):
    return {
        **{k: v for k, v in simulation.server.state.items() if k == "body"},
        **{f"head {i}": simulation.state(i)["head"] for i in range(4)},
        **{f"score {t}": torch.tensor(r["loss"]) for t, r in enumerate(simulation.metrics)},
    }


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_everything_off_it_is_fedrep_to_the_bit(federation, join):
    settings = {"batch": 4, "dtype": "float32", "join": join, "epochs": 3, "eval_point": "after_train"}
    split = simulate(federation, PGFedSplit(**OFF), **settings).run()
    rep = simulate(federation, FedRep(head_epochs=3), **settings).run()
    ours, theirs = results(split), results(rep)
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    assert split.ledger.totals == rep.ledger.totals
    assert set(split.state(0)) == {"head"}


def test_no_pull_is_a_pull_of_strength_zero(federation):
    settings = {"batch": 4, "dtype": "float32"}
    without, zero = (
        simulate(federation, PGFedSplit(**o, tau=2), **settings).run() for o in ({"proto_reg": False}, {"lam": 0.0})
    )
    assert all(torch.equal(a, b) for a, b in zip(results(without).values(), results(zero).values(), strict=True))


def test_an_own_share_of_one_is_no_aggregation_at_all(federation):
    settings = {"batch": 4, "dtype": "float32"}
    kept = simulate(federation, PGFedSplit(fixed_alpha=1.0, fixed_tau=1), **settings).run()
    alone = simulate(federation, PGFedSplit(head_agg=False), **settings).run()
    assert all(torch.equal(a, b) for a, b in zip(results(kept).values(), results(alone).values(), strict=True))
    assert "tau" not in alone.metrics[-1]
    assert kept.metrics[-1]["alpha_mean"] == 1


def test_an_own_share_of_zero_starts_everyone_from_the_aggregated_head(federation):
    simulation = simulate(federation, PGFedSplit(fixed_alpha=0.0, fixed_tau=1, head_epochs=0), rounds=2)
    simulation.step()
    aggregated = simulation.server.state["head"]
    simulation.step()
    assert all(torch.equal(simulation.state(i)["head"], aggregated) for i in range(4))


@pytest.mark.parametrize(
    ("options", "first_to_differ"),
    [
        ({"gaussian": False}, "head"),
        ({"proto_reg": False}, "body"),
        ({"proto_reduction": "sum"}, "body"),
        ({"lam": 1.0}, "body"),
        ({"cov": "total"}, "head"),
        ({"cov": "full"}, "head"),
        ({"ratio": 0.2}, "head"),
        ({"gamma_mode": "one"}, "head"),
        ({"label_prior": "uniform"}, "head"),
    ],
)
def test_a_switch_changes_its_own_phase_and_from_round_two_on(federation, options, first_to_differ):
    """In the first round there is no prototype, so nothing differs; in the second the head phase comes before that of the body."""
    plain, switched = (simulate(federation, PGFedSplit(**o, tau=4), rounds=2) for o in ({}, options))
    for simulation in (plain, switched):
        simulation.step()
    for name in ("body", "head"):
        assert torch.equal(plain.traffic.up[2][name], switched.traffic.up[2][name])
    for simulation in (plain, switched):
        simulation.step()
    head_differs = not torch.equal(plain.traffic.up[2]["head"], switched.traffic.up[2]["head"])
    assert head_differs == (first_to_differ == "head")
    assert not torch.equal(plain.traffic.up[2]["body"], switched.traffic.up[2]["body"])


def test_epochs_of_head_and_body_can_differ_from_the_protocols(federation):
    simulation = simulate(federation, PGFedSplit(head_epochs=0), rounds=1)
    head, body = simulation.state(0)["head"], simulation.server.state["body"]
    simulation.run()
    assert torch.equal(simulation.state(0)["head"], head)
    assert not torch.equal(simulation.traffic.up[0]["body"], body)
    simulation = simulate(federation, PGFedSplit(base_epochs=0), rounds=1).run()
    assert not torch.equal(simulation.state(0)["head"], head)
    assert torch.equal(simulation.traffic.up[0]["body"], body)


FLOAT = 8
SHARED = {"body": BODY * FLOAT, "prototypes": CLASSES * DIMENSIONS * FLOAT}


@pytest.mark.parametrize(
    ("options", "rounds", "up", "down"),
    [
        ({}, 1, {**SHARED, "head": HEAD * FLOAT, "classes": CLASSES}, {"body": BODY * FLOAT}),
        (
            {"tau": 5},
            5,
            {**SHARED, "head": HEAD * FLOAT, "classes": CLASSES},
            {**SHARED, "known": CLASSES, "spread": CLASSES * DIMENSIONS * FLOAT},
        ),
        (
            {"tau": 1, "cov": "total"},
            2,
            {**SHARED, "squares": SHARED["prototypes"], "head": HEAD * FLOAT, "classes": CLASSES, "alpha": FLOAT},
            {**SHARED, "known": CLASSES, "spread": CLASSES * DIMENSIONS * FLOAT, "head": HEAD * FLOAT},
        ),
        (
            {"cov": "full", "head_agg": False},
            2,
            {**SHARED, "classes": CLASSES},
            {**SHARED, "known": CLASSES, "spread": CLASSES * 4 * DIMENSIONS * FLOAT},
        ),
        ({"gaussian": False, "head_agg": False}, 2, {**SHARED, "classes": CLASSES}, {**SHARED, "known": CLASSES}),
        (OFF, 2, {"body": BODY * FLOAT}, {"body": BODY * FLOAT}),
    ],
)
def test_exactly_this_travels(federation, options, rounds, up, down):
    simulation = simulate(federation, PGFedSplit(**options), rounds=rounds).run()
    for direction, expected in (("up", up), ("down", down)):
        for i in range(4):
            entries = {e.name: e.bytes for e in simulation.ledger.last if (e.direction, e.client) == (direction, i)}
            assert entries == expected


def test_who_was_away_keeps_its_head_and_its_gap_grows(federation):
    simulation = simulate(federation, PGFedSplit(fixed_tau=1), rounds=8, join=0.25)
    last: dict[int, int] = {}
    for t in range(8):
        heads = {i: simulation.state(i)["head"].clone() for i in range(4)}
        simulation.step()
        for i in range(4):
            if i in simulation.traffic.up:
                if "alpha" in simulation.traffic.up[i]:
                    last[i] = t
            else:
                assert torch.equal(simulation.state(i)["head"], heads[i])
            assert int(simulation.state(i).get("adapted", -1)) == last.get(i, -1)
    absent = next(i for i in range(4) if i not in simulation.traffic.up)
    net = simulation.server.net(body=simulation.server.state["body"], head=simulation.state(absent)["head"])
    x, y = federation.clients[absent].test.x.double(), federation.clients[absent].test.y
    assert simulation.scores[absent].correct == (net(x).argmax(1) == y).sum()


def test_a_head_is_delivered_again_if_all_who_got_it_drop_out(federation):
    simulation = simulate(federation, PGFedSplit(fixed_tau=1), rounds=20, join=0.25, dropout=0.5)
    waiting = False
    for record in simulation:
        assert all(("head" in down) == waiting for down in simulation.traffic.down.values())
        assert ("alpha_mean" in record) == (waiting and record["replied"] > 0)
        waiting = waiting or record["replied"] > 0
    assert any(r["replied"] == 0 for r in simulation.metrics)


@pytest.mark.parametrize("cov", ["diag", "total", "full"])
def test_one_class_clients_absent_classes_and_tiny_clients(cov):
    rng = np.random.default_rng(0)
    parts = []
    for labels in ([0] * 6, [1], [0, 1, 2, 2], [4] * 3):  # class 3 is nowhere
        x = rng.normal(size=(len(labels), 5)).astype(np.float32)
        parts.append((x, np.array(labels), x[:0], np.array(labels)[:0]))
    parts[0] = (parts[0][0], parts[0][1], parts[0][0], parts[0][1])
    simulation = Simulation(
        Federation.from_clients(parts), PGFedSplit(fixed_tau=1, cov=cov, label_prior="uniform"), NET, rounds=6, join=0.5, lr=0.1
    ).run()  # fmt: skip
    assert not simulation.server.state["known"][3]
    assert all(torch.isfinite(v).all() for v in simulation.server.state.values())
    assert all(torch.isfinite(v).all() for i in range(4) for v in simulation.state(i).values())


def test_batchnorm_and_dropout_nets(federation):
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    runs = [Simulation(federation, PGFedSplit(fixed_tau=1), net, rounds=4, batch=4, lr=0.1).run() for _ in range(2)]
    assert torch.equal(*(r.server.state["body"] for r in runs))
    assert torch.isfinite(runs[0].server.state["body"]).all()
