"""HEART-PFL: whole rounds by hand, gradients against finite differences, its ends (PerAda), its switches and its limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.data.client_data import Split
from fedtailor.learning import Reply
from fedtailor.methods import methods
from fedtailor.methods.heart import Heart
from fedtailor.methods.perada import PerAda
from fedtailor.nets.adapters import ResNet18Adapters
from fedtailor.nets.cnn import CNN
from fedtailor.randomness import torch_stream

LR, MU, LAM = 0.1, 0.7, 0.3
QUICK = {"akt_steps": 3, "akt_lr": 0.05, "pgd_steps": 3, "pgd_epsilon": 0.3, "pgd_step": 0.15}


class Staged(nn.Module):
    """Three stages: maps of three pixels, maps of two, plain features."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = nn.Linear(5, 12), nn.Linear(12, 8), nn.Linear(4, 6), nn.Linear(6, 3)

    def stages(self, x: Tensor) -> list[Tensor]:
        return staged([*self.a.parameters(), *self.b.parameters(), *self.c.parameters()], x)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(x)[-1])


def staged(weights, x: Tensor) -> list[Tensor]:
    wa, ba, wb, bb, wc, bc = weights[:6]
    first = torch.tanh(x @ wa.T + ba).view(-1, 4, 3)
    second = torch.tanh(first.flatten(1) @ wb.T + bb).view(-1, 4, 2)
    return [first, second, torch.tanh(second.mean(2) @ wc.T + bc)]


def net() -> nn.Module:
    torch.manual_seed(2)
    return Staged()


@pytest.fixture
def proxied(federation: Federation) -> Federation:
    rng = np.random.default_rng(11)
    x = torch.from_numpy(rng.normal(size=(15, 5)).astype(np.float32) * 2)
    return dataclasses.replace(federation, server=Split(x, torch.arange(15) % 3))


def simulate(federation: Federation, method, **settings) -> Simulation:
    fixed = {"dtype": "float64", "batch": 1000, "lr": LR, "rounds": 2, "epochs": 2, "seed": 3}
    return Simulation(federation, method, net(), **{**fixed, **settings})


# -- an independent reference -------------------------------------------------------------------------------------------------------


class Reference:
    """HEART-PFL on vectors, from the equations, with full batches."""

    def __init__(self, simulation: Simulation, method: Heart) -> None:
        self.method = method
        self.part = simulation.server.net().all

    def unpacked(self, vector: Tensor) -> list[Tensor]:
        return [t.clone().requires_grad_() for t in self.part.named(vector).values()]

    def features(self, weights, x: Tensor) -> list[Tensor]:
        one, two, three = staged(weights, x)
        return [one.sum(2) / 3, two.sum(2) / 2, three]

    def logits(self, weights, x: Tensor) -> Tensor:
        return self.features(weights, x)[-1] @ weights[6].T + weights[7]

    def hda(self, weights, g: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        layers = self.method.hda_layers or (1, 2, 3)
        z = self.features(weights, x)
        for k in range(len(y)):
            for layer in layers:
                mine = z[layer - 1]
                own = mine[k] if self.method.hda_grad == "sample" else mine[y == y[k]].mean(0)
                theirs = g[layer - 1][k]
                if layer <= self.method.hda_k:
                    total = total + 1 - own @ theirs / (own @ own).sqrt() / (theirs @ theirs).sqrt()
                else:
                    total = total + (own - theirs).square().sum() / len(own)
        return total / (len(layers) * len(y))

    def personal(self, v: Tensor, w: Tensor, x: Tensor, y: Tensor, steps: int = 2) -> Tensor:
        g = [t.detach() for t in self.features(self.unpacked(w), x)]
        for _ in range(steps):
            weights = self.unpacked(v)
            flat = torch.cat([t.reshape(-1) for t in weights])
            loss = F.cross_entropy(self.logits(weights, x), y) + LAM * (flat - w).square().sum()
            if self.method.hda and self.method.hda_grad != "off":
                loss = loss + MU * self.hda(weights, g, x, y)
            v = v - LR * torch.cat([t.reshape(-1) for t in torch.autograd.grad(loss, weights)])
        return v

    def local(self, w: Tensor, x: Tensor, y: Tensor, steps: int = 2) -> Tensor:
        for _ in range(steps):
            weights = self.unpacked(w)
            loss = F.cross_entropy(self.logits(weights, x), y)
            w = w - LR * torch.cat([t.reshape(-1) for t in torch.autograd.grad(loss, weights)])
        return w

    def attack(self, w: Tensor, x: Tensor, y: Tensor, stream: torch.Generator) -> Tensor:
        moved = x + 0.3 * (2 * torch.rand(x.shape, generator=stream, dtype=x.dtype) - 1)
        for _ in range(3):
            moved = moved.detach().requires_grad_()
            F.cross_entropy(self.logits(self.unpacked(w), moved), y).backward()
            moved = x + (moved.detach() + 0.15 * moved.grad.sign() - x).clamp(-0.3, 0.3)
        return moved

    def divergence(self, teachers: list[Tensor], student: Tensor) -> Tensor:
        """Of one student's logits to the teachers': joined to one, or each by itself."""
        if self.method.skl == "ensemble":
            if self.method.ensemble == "logits":
                teachers = [sum(teachers) / len(teachers)]
            else:
                teachers = [(sum(t.softmax(1) for t in teachers) / len(teachers)).log()]
        q = student.softmax(1)
        total = torch.zeros((), dtype=torch.float64)
        for t in teachers:
            p = t.softmax(1)
            total = total + (p * (p / q).log()).sum(1).mean()
            if self.method.symmetric:
                total = total + (q * (q / p).log()).sum(1).mean()
        return total / len(teachers)

    def server(self, uploads: list[Tensor], x: Tensor, y: Tensor, round: int) -> Tensor:
        mean = sum(uploads) / len(uploads)
        stream = torch_stream(3, "server", round, "attack")
        views: list[tuple[Tensor, list[Tensor]]] = []
        if self.method.views != "adv":
            views.append((x, [self.logits(self.unpacked(u), x).detach() for u in uploads]))
        if self.method.views != "clean":
            seen = self.attack(mean, x, y, stream)
            theirs = [seen if self.method.shared_adv else self.attack(u, x, y, stream) for u in uploads]
            views.append(
                (seen, [self.logits(self.unpacked(u), t).detach() for u, t in zip(uploads, theirs, strict=True)])
            )
        w, m, v = mean, 0, 0
        for k in range(3):
            weights = self.unpacked(w)
            loss = sum(self.divergence(answers, self.logits(weights, seen)) for seen, answers in views)
            grad = torch.cat([t.reshape(-1) for t in torch.autograd.grad(loss, weights)])
            m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
            rate = 0.05 * 0.5 * (1 + math.cos(math.pi * k / 3))
            w = w - rate * (m / (1 - 0.9 ** (k + 1))) / ((v / (1 - 0.999 ** (k + 1))).sqrt() + 1e-8)
        return w


@pytest.mark.parametrize(
    "options",
    [
        {"hda_k": 1},
        {"hda_k": 3, "views": "adv", "shared_adv": True},
        {"hda_k": 0, "hda_layers": (1, 3), "views": "clean", "ensemble": "probs"},
        {"hda_grad": "sample", "symmetric": False, "skl": "per_client"},
        {"hda_grad": "off", "skl": "per_client"},
    ],
    ids=str,
)
def test_two_rounds_by_hand(proxied, options):
    method = Heart(mu=MU, lam=LAM, kd_accept="last", **QUICK, **options)
    simulation = simulate(proxied, method)
    reference = Reference(simulation, method)
    w = simulation.server.state["model"].clone()
    own = dict.fromkeys(range(4), w)
    for round in (1, 2):
        simulation.step()
        uploads = []
        for i, client in enumerate(proxied.clients):
            x, y = client.train.x.double(), client.train.y
            own[i] = reference.personal(own[i], w, x, y)
            uploads.append(reference.local(w, x, y))
            torch.testing.assert_close(simulation.state(i)["personal"], own[i], rtol=0, atol=1e-9)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], uploads[i], rtol=0, atol=1e-9)
        w = reference.server(uploads, proxied.server.x.double(), proxied.server.y, round)
        torch.testing.assert_close(simulation.server.state["model"], w, rtol=0, atol=1e-8)


# -- gradients ----------------------------------------------------------------------------------------------------------------------


def slopes(value: Callable[[Tensor], Tensor], at: Tensor, h: float = 1e-6) -> Tensor:
    """Central finite differences, entry by entry."""
    steps = h * torch.eye(len(at), dtype=at.dtype)
    return torch.stack([(value(at + s) - value(at - s)) / (2 * h) for s in steps])


def client_and_losses(proxied, method):
    simulation = simulate(proxied, method)
    client = simulation.worker._client(0, 1, "fit")
    w = simulation.server.state["model"]
    v = w + 0.3 * torch.randn(len(w), dtype=w.dtype, generator=torch.Generator().manual_seed(0))
    own = client.net("personal", model=v)
    plain = lambda net, x, y: client.loss(net(x), y)  # noqa: E731
    return client, own, v, method.personal_loss(client, own, w) or plain


@pytest.mark.parametrize("hda_grad", ["batch_proto", "sample", "off"])
def test_the_personal_gradient_against_finite_differences(proxied, hda_grad):
    client, own, v, loss = client_and_losses(proxied, Heart(mu=5.0, hda_grad=hda_grad))
    x, y = client.samples.x, client.samples.y

    def value(vector: Tensor) -> Tensor:
        own.all.vector = vector
        with torch.no_grad():
            return loss(own, x, y)

    expected = slopes(value, v)
    own.all.vector = v
    found = own.all.gradient(loss(own, x, y))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    plain = own.all.gradient(F.cross_entropy(own(x), y))
    assert torch.equal(found, plain) == (hda_grad == "off")
    if hda_grad != "off":
        assert (found - plain)[: len(own.body)].norm() > 0.1


def test_a_batch_that_lacks_classes_or_has_one_sample_of_each_is_fine(proxied):
    client, own, _, loss = client_and_losses(proxied, Heart(mu=5.0))
    for rows in ([0], client.samples.y.eq(client.samples.y[0]).nonzero().flatten().tolist(), [0, 1]):
        gradient = own.all.gradient(loss(own, client.samples.x[rows], client.samples.y[rows]))
        assert gradient.isfinite().all()


def test_the_transfers_gradient_against_finite_differences(proxied):
    method = Heart(**QUICK)
    simulation = simulate(proxied, method)
    simulation.step()
    replies = [Reply(i, o.samples, o.up) for i, o in simulation.outcomes.items()]
    mean = sum(r["model"] for r in replies) / 4
    lessons = method.lessons(simulation.server, replies, mean, torch.arange(15))
    assert len(lessons) == 2
    student = simulation.server.net("student", model=mean)

    def value(vector: Tensor) -> Tensor:
        student.all.vector = vector
        return sum(method.divergence(lesson.logits, student(lesson.x)) for lesson in lessons)

    at = mean + 0.3 * torch.randn(len(mean), dtype=mean.dtype, generator=torch.Generator().manual_seed(0))
    found = student.all.gradient(value(at))
    with torch.no_grad():
        torch.testing.assert_close(found, slopes(value, at), rtol=0, atol=1e-7)
    assert found.norm() > 0.1


# -- its ends -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [{"hda": False}, {"hda_grad": "off"}])
def test_without_hda_on_clean_samples_and_one_way_it_is_perada_to_the_bit(proxied, off):
    common = {"akt_steps": 3, "akt_batch": 6}
    settings = {"batch": 4, "dtype": "float32", "rounds": 3}
    heart = simulate(proxied, Heart(views="clean", symmetric=False, **off, **common), **settings).run()
    perada = simulate(proxied, PerAda(**common), **settings).run()
    assert torch.equal(heart.server.state["model"], perada.server.state["model"])
    assert all(torch.equal(heart.state(i)["personal"], perada.state(i)["personal"]) for i in range(4))
    assert [r["accuracy"] for r in heart.metrics] == [r["accuracy"] for r in perada.metrics]


@pytest.mark.parametrize("change", [{"views": "both"}, {"symmetric": True}, {"hda": True}])
def test_each_of_its_parts_makes_a_difference(proxied, change):
    base = {"hda": False, "views": "clean", "symmetric": False, "mu": 1.0, "kd_accept": "last", **QUICK}
    plain, changed = (simulate(proxied, Heart(**{**base, **c})).run() for c in ({}, change))
    differs = [not torch.allclose(plain.state(i)["personal"], changed.state(i)["personal"]) for i in range(4)]
    assert all(differs)


def test_what_travels_and_what_is_logged(proxied):
    simulation = simulate(proxied, Heart(**QUICK)).run()
    size = len(simulation.server.net().all) * 8
    assert sorted((e.direction, e.name, e.bytes) for e in simulation.ledger.last) == [
        *[("down", "model", size)] * 4,
        *[("up", "model", size)] * 4,
    ]
    assert all(set(simulation.state(i)) == {"personal"} for i in range(4))
    logged = simulation.outcomes[1].logged
    assert set(logged) == {f"{what}_{stage}" for what in ("alignment", "norm_spread") for stage in (1, 2, 3)}
    assert all(-1 <= logged[f"alignment_{stage}"] <= 1 for stage in (1, 2, 3))


@pytest.mark.parametrize("options", [{}, {"teacher_mode": "train"}, {"akt_refresh": True}])
def test_with_norms_and_dropout_the_same_seed_gives_the_same_bits(proxied, options):
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.a = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Tanh())
            self.fc = nn.Linear(6, 3)

        def stages(self, x: Tensor) -> list[Tensor]:
            return [self.a(x)]

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.a(x))

    runs = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # the global generator must not matter
        module = Normed()
        torch.manual_seed(noise)
        simulation = Simulation(proxied, Heart(**QUICK, **options), module, batch=4, lr=LR, rounds=2, seed=3).run()
        runs.append((simulation.server.state["model"], simulation.state(2)["personal"]))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert len(runs[0][0]) == 6 * 5 + 6 + 2 * 6 + 2 * 6 + 6 * 3 + 3  # statistics travel and are averaged
    assert runs[0][0].isfinite().all()


def test_mistakes_are_told(proxied, federation):
    with pytest.raises(FedTailorError, match="partition=paired"):
        simulate(federation, Heart())
    with pytest.raises(FedTailorError, match="hda_layers names stage 4, but the net has stages 1 to 3"):
        simulate(proxied, Heart(hda_layers=(4,)))
    with pytest.raises(FedTailorError, match="does not expose stages"):
        Simulation(proxied, Heart(), "mlp")
    Simulation(proxied, Heart(hda=False, **QUICK), "mlp", rounds=1).run()
    assert methods.find("HEART-PFL") is methods.find("heart_pfl") is Heart


def pictures(clients: int = 1, n: int = 8) -> Federation:
    rng = np.random.default_rng(0)
    parts = [(rng.integers(0, 256, (2 * n, 3, 8, 8), dtype=np.uint8), np.arange(2 * n) % 4) for _ in range(clients)]
    federation = Federation.from_clients([(x[:n], y[:n], x[n:], y[n:]) for x, y in parts])
    x = torch.from_numpy(rng.integers(0, 256, (6, 3, 8, 8), dtype=np.uint8))
    return dataclasses.replace(federation, server=Split(x, torch.arange(6) % 4))


def test_any_net_with_stages_will_do():
    simulation = Simulation(pictures(3), Heart(**QUICK), CNN(conv1=4, conv2=4, hidden=8), rounds=2, batch=4).run()
    assert set(simulation.outcomes[0].logged) >= {"alignment_3", "norm_spread_3"}
    assert simulation.server.state["model"].isfinite().all()


def test_one_batch_with_the_real_adapter_net():
    method = Heart(**{**QUICK, "akt_steps": 1, "pgd_steps": 1})
    simulation = Simulation(pictures(), method, ResNet18Adapters(), rounds=1, batch=8, lr=0.01)
    before = {n: t.clone() for n, t in simulation.personal(0).state_dict().items()}
    simulation.step()
    after = simulation.personal(0).state_dict()
    moved = {n for n, t in before.items() if not torch.equal(t, after[n])}
    frozen = {n for n, p in simulation.personal(0).named_parameters() if not p.requires_grad}
    assert not moved & frozen
    assert {n.split(".")[-2] for n in moved} >= {"bn1", "bn2", "fc"}
    assert any("adapter1.conv" in n for n in moved)
    assert simulation.traffic.up[0]["model"].isfinite().all()
    assert simulation.ledger.last[0].bytes == 4 * len(simulation.server.net().all)
