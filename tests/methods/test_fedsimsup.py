"""FedSimSup against its equations in plain loops: alternating descent on summed logits, and what the server does for those who sit out."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedtailor import Federation, Simulation
from fedtailor.errors import FedTailorError
from fedtailor.learning import Protocol, Reply, Server, mixing
from fedtailor.methods import Method
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedrep import FedRep
from fedtailor.methods.fedsimsup import FedSimSup
from fedtailor.methods.local import Local
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
LR = 0.1
FULL = {"dtype": "float64", "batch": 1000, "lr": LR, "seed": 3}  # full batches: an epoch is one step
SMALL = {"batch": 4, "lr": LR, "seed": 3}


def logits(tensors, x):
    w1, b1, w2, b2 = tensors
    return torch.relu(x @ w1.T + b1) @ w2.T + b2


def descend(simulation, moving, fixed, data, steps):
    """Full-batch descent of one branch beside a fixed one, on tensors unpacked from the vectors."""
    part = simulation.server.net().all
    x, y = data.x.double(), data.y
    beside = logits(part.named(fixed).values(), x)
    for _ in range(steps):
        tensors = [t.clone().requires_grad_() for t in part.named(moving).values()]
        F.cross_entropy(logits(tensors, x) + beside, y).backward()
        moving = torch.cat([(t - LR * t.grad).detach().reshape(-1) for t in tensors])
    return moving


def server_by_hand(models, uploads, labels, sizes, beta, sim=True):
    """Equations 6 to 9, entry by entry."""
    new = []
    for i, old in enumerate(models):
        if i in uploads:
            new.append(uploads[i])
            continue
        if sim:
            s = {j: float(labels[i] @ labels[j] / labels[i].norm() / labels[j].norm()) for j in uploads}
        else:
            s = {j: float(sizes[j]) for j in uploads}
        if sum(s.values()) == 0:
            new.append(old)
            continue
        total = sum(sizes[j] for j in uploads)
        alpha = total / (total + len(uploads) * sizes[i]) * beta
        others = sum(s[j] / sum(s.values()) * uploads[j] for j in uploads)
        new.append((1 - alpha) * old + alpha * others)
    return torch.stack(new)


def test_three_rounds_by_hand(federation):
    method = FedSimSup(supervisor_epochs=2, model_epochs=3, C=1.2, gamma=0.5)  # β weakens from round 3 of 3 on
    simulation = Simulation(federation, method, NET, rounds=3, join=0.5, **FULL)
    models = simulation.server.state["models"].clone()
    supervisors = [simulation.state(i)["supervisor"].clone() for i in range(4)]
    labels = [torch.bincount(c.train.y, minlength=3).double() / len(c.train) for c in federation.clients]
    sizes = [len(c.train) for c in federation.clients]
    for t in (1, 2, 3):
        simulation.step()
        uploads = {}
        for i in simulation.traffic.up:
            data = federation.clients[i].train
            torch.testing.assert_close(simulation.traffic.down[i]["model"], models[i], rtol=0, atol=1e-11)
            supervisors[i] = descend(simulation, supervisors[i], models[i], data, 2)
            uploads[i] = descend(simulation, models[i], supervisors[i], data, 3)
            torch.testing.assert_close(simulation.traffic.up[i]["model"], uploads[i], rtol=0, atol=1e-11)
        switch = 1.2 * math.sqrt(3)
        beta = 1.0 if t < switch else (switch / t) ** 2
        assert (beta < 1) == (t == 3)
        models = server_by_hand(models, uploads, labels, sizes, beta)
        torch.testing.assert_close(simulation.server.state["models"], models, rtol=0, atol=1e-11)
        for i in range(4):
            torch.testing.assert_close(simulation.state(i)["supervisor"], supervisors[i], rtol=0, atol=1e-11)
            test = federation.clients[i].test
            named = simulation.server.net().all.named
            both = sum(logits(named(v).values(), test.x.double()) for v in (models[i], supervisors[i]))
            assert simulation.scores[i].correct == (both.argmax(1) == test.y).sum()


@pytest.mark.parametrize("sim", [True, False])
def test_the_server_update_of_many_clients_against_a_double_loop(sim):
    rng = torch.Generator().manual_seed(0)
    n, here = 60, [3, 4, 17, 40, 59]
    sizes = torch.randint(1, 300, (n,), generator=rng).tolist()
    labels = torch.rand(n, 10, generator=rng, dtype=torch.float64) * (torch.rand(n, 10, generator=rng) < 0.2)
    labels[labels.sum(1) == 0, 0] = 1
    labels /= labels.sum(1, keepdim=True)
    models = torch.randn(n, 13, generator=rng, dtype=torch.float64)
    uploads = {j: torch.randn(13, generator=rng, dtype=torch.float64) for j in here}
    method = FedSimSup(sim=sim, C=2.0, gamma=0.25)
    server = Server(None, None, Protocol(rounds=16), sizes)  # type: ignore[arg-type]
    server.begin(9)
    server.state.update(models=models.clone(), labels=labels)
    method.aggregate(server, [Reply(j, sizes[j], {"model": uploads[j]}) for j in here])
    expected = server_by_hand(models, uploads, labels, sizes, beta=(4 / 9) ** 2, sim=sim)
    torch.testing.assert_close(server.state["models"], expected, rtol=0, atol=1e-12)
    assert all(torch.equal(server.state["models"][j], uploads[j]) for j in here)
    assert server.logged["beta"] == (4 / 9) ** 2


def test_models_of_many_columns_are_mixed_block_by_block(federation, monkeypatch):
    whole = Simulation(federation, FedSimSup(), NET, rounds=4, join=0.5, **FULL).run()
    monkeypatch.setattr(mixing, "BLOCK", 7)
    blocks = Simulation(federation, FedSimSup(), NET, rounds=4, join=0.5, **FULL).run()
    assert blocks.server.state["models"].shape[1] % 7
    torch.testing.assert_close(blocks.server.state["models"], whole.server.state["models"], rtol=0, atol=1e-12)
    assert [r["alpha"] for r in blocks.metrics] == [r["alpha"] for r in whole.metrics]
    assert whole.metrics[0]["alpha"] > 0


def test_who_shares_no_label_with_a_participant_stays_as_it_is():
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]], dtype=torch.float64)
    server = Server(None, None, Protocol(rounds=5), [4, 4, 4])  # type: ignore[arg-type]
    server.begin(1)
    models = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    server.state.update(models=models.clone(), labels=labels)
    FedSimSup().aggregate(server, [Reply(1, 4, {"model": torch.zeros(5)})])
    assert torch.equal(server.state["models"][0], models[0])
    torch.testing.assert_close(server.state["models"][2], models[2] / 2)  # equal sizes: λ = 1/2


@pytest.mark.parametrize(
    ("c", "gamma", "switch"), [(10, 1 / 3, 100), (20, 2 / 5, 317), (40, 2 / 5, 634), (40, 3 / 7, 773)]
)
def test_the_schedule_of_beta(c, gamma, switch):
    method = FedSimSup(C=c, gamma=gamma)
    assert all(method.beta(t, 1000) == 1 for t in (1, switch // 2, switch - 1))
    point = c * 1000**gamma
    for t in (switch, switch + 1, 1000):
        assert math.isclose(method.beta(t, 1000), (point / t) ** 2, rel_tol=1e-12)
    assert 0.99 < method.beta(switch, 1000) <= 1  # no jump at the switch


# -- what it becomes at the ends of its options -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoBranches(Method):
    """Local training of two nets whose logits are added, one after the other."""

    keeps = ("a", "b")

    def init(self, client):
        return {"a": client.net("a").all.vector, "b": client.fresh("supervisor")}

    def fit(self, client, payload):
        a, b = client.net("a", model=client.state["a"]), client.net("b", model=client.state["b"])
        client.train(b.all, epochs=2, loss=lambda net, x, y: F.cross_entropy(a(x) + net(x), y), purpose="supervisor")
        client.train(a.all, epochs=3, loss=lambda net, x, y: F.cross_entropy(net(x) + b(x), y))
        client.state.update(a=a.all.vector, b=b.all.vector)
        return {}

    def personal(self, client, payload):
        return client.net("a", model=client.state["a"])


TwoBranches.name = "two-branches"


def test_at_full_participation_it_is_two_branches_trained_alone_to_the_bit(federation):
    method = FedSimSup(supervisor_epochs=2, model_epochs=3)
    together = Simulation(federation, method, NET, rounds=3, **SMALL).run()
    alone = Simulation(federation, TwoBranches(), NET, rounds=3, **SMALL).run()
    for i in range(4):
        assert torch.equal(together.server.state["models"][i], alone.state(i)["a"])
        assert torch.equal(together.state(i)["supervisor"], alone.state(i)["b"])


def test_alone_and_without_a_supervisor_it_is_local_to_the_bit(federation):
    bare = Simulation(federation, FedSimSup(no_supervisor=True, model_epochs=2), NET, rounds=3, **SMALL).run()
    local = Simulation(federation, Local(), NET, rounds=3, epochs=2, **SMALL).run()
    assert all(torch.equal(bare.server.state["models"][i], local.state(i)["model"]) for i in range(4))


def test_averaged_without_a_supervisor_it_is_fedavg_to_the_bit(federation):
    method = FedSimSup(no_supervisor=True, sim="fedavg", model_epochs=2)
    bare = Simulation(federation, method, NET, rounds=3, join=0.5, **SMALL).run()
    averaged = Simulation(federation, FedAvg(), NET, rounds=3, join=0.5, epochs=2, **SMALL).run()
    assert all(torch.equal(model, averaged.server.state["model"]) for model in bare.server.state["models"])


def test_serial_and_averaged_it_is_fedrep_to_the_bit(federation):
    method = FedSimSup(arch="serial", sim="fedavg", supervisor_epochs=3, model_epochs=2)
    serial = Simulation(federation, method, NET, rounds=4, join=0.5, **SMALL).run()
    fedrep = Simulation(federation, FedRep(head_epochs=3), NET, rounds=4, join=0.5, epochs=2, **SMALL).run()
    assert all(torch.equal(body, fedrep.server.state["body"]) for body in serial.server.state["models"])
    assert all(torch.equal(serial.state(i)["supervisor"], fedrep.state(i)["head"]) for i in range(4))
    assert serial.scores == fedrep.scores


# -- supervisors --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def images() -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_clients(
        [
            (rng.integers(0, 256, (8, 8, 8), dtype=np.uint8), rng.integers(0, 3, 8), *two)
            for two in [(rng.integers(0, 256, (2, 8, 8), dtype=np.uint8), rng.integers(0, 3, 2)) for _ in range(7)]
        ]
    )


def test_each_client_draws_a_supervisor_of_its_own_and_keeps_it(images):
    method = FedSimSup(supervisor="vit, mlp,lenet-small", supervisor_epochs=1, model_epochs=1)
    groups = method.groups(seed=5, clients=7)
    assert groups == method.groups(seed=5, clients=7)
    assert groups != method.groups(seed=2, clients=7)
    assert list(groups) == ["vit", "mlp", "lenet-small"]
    assert sorted(i for members in groups.values() for i in members) == list(range(7))
    assert all(groups.values())  # this seed draws each of them
    simulation = Simulation(images, method, "lenet", rounds=3, join=0.5, seed=5)
    before = [len(simulation.state(i)["supervisor"]) for i in range(7)]
    simulation.run()
    for name, members in groups.items():
        size = len(simulation.server.net("x", architecture=name).all)
        assert {before[i] for i in members} == {len(simulation.state(i)["supervisor"]) for i in members} == {size}
    logged = {i: o.logged["group"] for i, o in simulation.outcomes.items()}
    assert all(i in list(groups.values())[int(group)] for i, group in logged.items())
    many = FedSimSup(supervisor="a,b,c").groups(seed=0, clients=900)
    assert all(240 < len(members) < 360 for members in many.values())


def test_by_default_a_small_lenet_watches_over_images_and_the_runs_net_over_the_rest(images, federation):
    simulation = Simulation(images, "fedsimsup", "lenet", join=0.5)
    small = simulation.server.net("x", architecture="lenet-small").all
    assert len(simulation.state(0)["supervisor"]) == len(small) < len(simulation.server.net().all) / 3
    simulation = Simulation(federation, "fedsimsup", NET, join=0.5)
    assert len(simulation.state(0)["supervisor"]) == len(simulation.server.net().all)


def test_supervisors_start_apart_and_models_together(federation):
    simulation = Simulation(federation, "fedsimsup", NET, join=0.5)
    first, second = (simulation.state(i)["supervisor"] for i in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, simulation.state(0)["supervisor"])
    assert (simulation.server.state["models"] == simulation.server.net().all.vector).all()


def test_a_supervisor_that_does_not_exist_is_named(federation):
    with pytest.raises(FedTailorError, match="lenett"):
        Simulation(federation, FedSimSup(supervisor="lenett"), NET, join=0.5)


def test_a_personal_model_is_exported_whole_with_names_one_can_read(images):
    method = FedSimSup(supervisor_epochs=1, model_epochs=1)
    simulation = Simulation(images, method, "lenet", rounds=3, join=0.5, lr=0.1)
    simulation.step()
    model = simulation.personal(0)
    names = set(model.state_dict())
    assert {"model.conv1.weight", "model.fc.bias", "supervisor.conv1.weight", "supervisor.fc.bias"} <= names
    assert {name.split(".")[0] for name in names} == {"model", "supervisor"}
    x = torch.randn(4, 1, 8, 8)
    before = model(x)
    vectors = simulation.server.state["models"][0], simulation.state(0)["supervisor"]
    net = simulation.server.net("a", model=vectors[0])
    own = simulation.server.net("b", model=vectors[1], architecture="lenet-small")
    assert torch.equal(before, net(x) + own(x))
    simulation.run()
    assert torch.equal(model(x), before)  # an independent copy


# -- what travels, what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["parallel", "serial"])
def test_supervisors_never_travel(federation, arch):
    simulation = Simulation(federation, FedSimSup(arch=arch), NET, rounds=2, join=0.5, **FULL)
    assert {(e.round, e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {(0, "up", "labels", 3 * 8)}
    assert len(simulation.ledger.last) == 4
    simulation.run()
    net = simulation.server.net()
    size = len(net.all if arch == "parallel" else net.body) * 8
    assert {(e.direction, e.name, e.bytes) for e in simulation.ledger.last} == {
        ("up", "model", size),
        ("down", "model", size),
    }
    assert {name for _, _, name in simulation.ledger.totals} == {"labels", "model"}


def test_full_participation_is_warned_of(federation, caplog):
    def warned(**settings):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedtailor"):
            Simulation(federation, settings.pop("method", "fedsimsup"), NET, **settings)
        return "local training" in caplog.text

    assert warned()
    assert not warned(join=0.5)
    assert not warned(join=(0.5, 1.0))
    assert not warned(method=FedSimSup(sim="fedavg"))


def test_a_newcomer_starts_from_models_of_clients_with_similar_labels(federation):
    simulation = Simulation(federation, FedSimSup(), NET, rounds=2, join=0.5, **FULL).run()
    models, labels = simulation.server.state["models"], simulation.server.state["labels"]
    q = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    s = [float(q @ other / q.norm() / other.norm()) for other in labels]
    expected = sum(x / sum(s) * m for x, m in zip(s, models, strict=True))
    sent = simulation.method.welcome(simulation.server, {"labels": q})["model"]
    torch.testing.assert_close(sent, expected, rtol=0, atol=1e-12)
    nothing = simulation.method.welcome(simulation.server, {"labels": torch.zeros(3, dtype=torch.float64)})["model"]
    by_samples = sum(len(c.train) / 48 * m for c, m in zip(federation.clients, models, strict=True))
    torch.testing.assert_close(nothing, by_samples, rtol=0, atol=1e-12)


def test_tiny_and_one_sided_clients(caplog):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    none = (x[:0], np.zeros(0, int))
    federation = Federation.from_clients([(x[:1], [0], *none), (x[1:5], [1] * 4, *none), (x[5:], [0, 1, 2, 2], *none)])
    for method in (FedSimSup(), FedSimSup(arch="serial"), FedSimSup(sim=False)):
        simulation = Simulation(federation, method, NET, rounds=4, join=0.4, batch=3, lr=0.1).run()
        assert torch.isfinite(simulation.server.state["models"]).all()
    assert not caplog.records
