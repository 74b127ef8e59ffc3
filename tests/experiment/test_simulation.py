"""A simulation: determinism, participation, what is open to look at, and what may travel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.methods import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.finetune import FedAvgFT
from fedtailor.nets.mlp import MLP

NET = MLP(hidden=(6,))
NAMES = ("local", "fedavg", "fedprox", "fedavg-ft", "fedprox-ft", "fedper", "fedrep")
TIMES = ("seconds_training", "seconds_evaluation", "seconds_communication")


def numbers(simulation: Simulation) -> list[dict]:
    return [{k: v for k, v in r.items() if k not in TIMES} for r in simulation.metrics]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones(federation, name):
    first, second, other = (
        Simulation(federation, name, NET, rounds=3, join=0.5, batch=4, lr=0.1, seed=s).run() for s in (1, 1, 2)
    )
    assert numbers(first) == numbers(second)
    assert numbers(first) != numbers(other)
    for i in range(4):
        same = zip(first.personal(i).parameters(), second.personal(i).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in same)


SCRIPT = """
import torch, numpy as np, fedtailor as ft
x = np.random.default_rng(0).normal(size=(60, 5)); y = np.arange(60) % 3
federation = ft.Federation.from_arrays(x, y, clients=4, partition="iid")
simulation = ft.Simulation(federation, "fedrep", "mlp", rounds=2, join=0.5, seed=5).run()
print(simulation.server.state["body"].double().sum().item().hex(), simulation.metrics[-1]["loss"].hex())
"""


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bits(capsys):
    fresh = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    exec(SCRIPT, {})
    assert capsys.readouterr().out == fresh != ""


def test_a_clients_training_does_not_depend_on_who_else_takes_part(federation):
    alone = Simulation(federation, "fedavg", NET, rounds=1, batch=4, lr=0.1)
    down = {"model": alone.server.state["model"]}
    one = alone.engine.fit(1, [2], lambda i: down, evaluate=False)[2].up["model"]
    many = alone.engine.fit(1, [3, 2, 0], lambda i: down, evaluate=False)[2].up["model"]
    assert torch.equal(one, many)


def test_the_global_generator_is_neither_used_nor_moved(federation):
    net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    Simulation(federation, "fedrep", net, rounds=1).run()
    assert torch.equal(torch.rand(3), expected)


def test_everything_of_the_last_round_is_open_as_named_vectors(federation):
    simulation = Simulation(federation, "fedrep", NET, rounds=2, join=0.5)
    record = simulation.step()
    assert record["round"] == 1
    assert set(simulation.traffic.up) == set(simulation.traffic.down)
    client = next(iter(simulation.traffic.up))
    named = simulation.server.net().body.named(simulation.traffic.up[client]["body"])
    assert {name: tuple(t.shape) for name, t in named.items()} == {"hidden.0.weight": (6, 5), "hidden.0.bias": (6,)}
    assert set(simulation.state(client)) == {"head"}
    assert set(simulation.server.state) == {"body"}


def test_dropouts_receive_but_do_not_reply(federation):
    simulation = Simulation(federation, "fedavg", NET, rounds=30, dropout=0.5).run()
    replied = [r["replied"] for r in simulation.metrics]
    assert all(r["picked"] == 4 for r in simulation.metrics)
    assert 0 < sum(replied) < 4 * 30
    size = len(simulation.server.net().all) * 4
    assert all(r["bytes_up"] == r["replied"] * size and r["bytes_down"] == 4 * size for r in simulation.metrics)


def test_a_round_in_which_all_drop_out_changes_nothing(federation):
    simulation = Simulation(federation, "fedavg", NET, rounds=2, dropout=1.0)
    before = simulation.server.state["model"].clone()
    record = simulation.run().metrics[-1]
    assert record["replied"] == 0
    assert torch.equal(simulation.server.state["model"], before)


def test_after_train_scores_the_trained_model_of_participants_and_the_synced_one_of_others(federation):
    simulation = Simulation(
        federation, "fedavg", NET, rounds=1, join=0.5, lr=0.5, eval_point="after_train", dtype="float64"
    )
    simulation.step()
    for i, client in enumerate(federation.clients):
        vector = simulation.traffic.up[i]["model"] if i in simulation.traffic.up else simulation.server.state["model"]
        net = simulation.server.net(model=vector)
        assert simulation.scores[i].correct == (net(client.test.x.double()).argmax(1) == client.test.y).sum()


def test_evaluation_may_be_sparse_but_the_last_round_always_has_one(federation):
    simulation = Simulation(federation, "fedavg", NET, rounds=5, eval_every=3).run()
    assert [r["accuracy"] is not None for r in simulation.metrics] == [False, False, True, False, True]
    assert simulation.metrics[3]["best_round"] == 3


CLOSING = ("fedavg-ft", "fedprox-ft", "fedavg-per", "fedprox-per", "fedproto-per", "fedbabu", "tailor")


def test_these_are_the_methods_with_closing_steps():
    assert set(CLOSING) == {name for name in methods.classes if methods.build(name, {}).closing_steps}


@pytest.mark.parametrize("name", CLOSING)
def test_evaluating_the_last_closing_step_only_gives_the_numbers_of_evaluating_each(federation, name):
    settings = {"rounds": 2, "batch": 4, "lr": 0.1, "join": 0.5}
    last, each = (Simulation(federation, name, NET, eval_closing=e, **settings).run() for e in ("last", "each"))
    ours, theirs = ([r for r in numbers(s) if r["phase"] == "finish"] for s in (last, each))
    assert [r["accuracy"] is not None for r in ours] == [False] * (len(ours) - 1) + [True]
    assert all(r["accuracy"] is not None for r in theirs)
    assert last.scores == each.scores
    best = ("best_accuracy", "best_accuracy_mean")  # of the steps that were evaluated
    assert [ours[-1][k] for k in best] == [ours[-1]["accuracy"], ours[-1]["accuracy_mean"]]
    assert {k: v for k, v in ours[-1].items() if k not in best} == {
        k: v for k, v in theirs[-1].items() if k not in best
    }
    for i in range(4):
        for key, tensor in each.state(i).items():
            assert torch.equal(last.state(i)[key], tensor)


def test_a_closing_step_without_evaluation_has_a_record_like_such_a_round(federation):
    run = Simulation(federation, FedAvgFT(ft_epochs=2), NET, rounds=2, eval_every=2).run()
    not_due, _, closing, last = run.metrics
    empty = {name for name, value in not_due.items() if value is None}
    assert "accuracy" in empty
    assert empty == {name for name, value in closing.items() if value is None}
    assert not any(value is None for value in last.values())
    assert closing["seconds_evaluation"] < last["seconds_evaluation"]


def test_best_so_far_is_the_best_pooled_accuracy(federation):
    simulation = Simulation(federation, "fedrep", NET, rounds=8, lr=0.3).run()
    accuracies = [r["accuracy"] for r in simulation.metrics]
    for t, record in enumerate(simulation.metrics):
        assert record["best_accuracy"] == max(accuracies[: t + 1])
        assert accuracies[record["best_round"] - 1] == record["best_accuracy"]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_features_are_what_the_head_of_the_personal_model_sees(federation, engine):
    settings = {"rounds": 2, "join": 0.5, "lr": 0.1, "dtype": "float64", "validation": 0.3}
    simulation = Simulation(federation, "fedavg-ft", NET, engine=engine, workers=2, **settings)
    for _ in range(4):  # two rounds, two closing steps
        simulation.step()
    assert simulation.state(1)["personal"].any()
    own = simulation.server.net().all.named(simulation.state(1)["personal"])
    w1, b1, w2, b2 = own.values()
    client = simulation.federation.clients[1]
    for part, split in (("train", client.train), ("validation", client.validation), ("test", client.test)):
        z, y = simulation.features(client.name, part)
        x = split.take(torch.arange(len(split))).double()
        torch.testing.assert_close(z, torch.relu(x @ w1.T + b1), rtol=0, atol=1e-12)
        assert torch.equal(y, split.y)
        torch.testing.assert_close(simulation.personal(1)(x), z @ w2.T + b2, rtol=0, atol=1e-12)
    assert torch.equal(simulation.features(1)[0], z)
    while not simulation.finished:
        simulation.step()
    assert not torch.equal(simulation.features(1)[0], z)


def test_looking_at_features_changes_nothing(federation):
    plain, looked = (Simulation(federation, "fedrep", NET, rounds=3, batch=4, lr=0.1) for _ in range(2))
    for _ in looked:
        looked.features(2, "train")
    assert numbers(plain.run()) == numbers(looked)


def test_features_that_there_are_not_are_refused_in_words(federation):
    simulation = Simulation(federation, "fedavg", NET, rounds=1).run()
    with pytest.raises(FedTailorError, match=r"no part 'tset'.*train, validation, test"):
        simulation.features(0, "tset")
    with pytest.raises(FedTailorError, match=r"no validation samples.*validation=0.2"):
        simulation.features(0, "validation")
    with pytest.raises(FedTailorError, match="There is no client 'nobody'"):
        simulation.features("nobody")
    two_heads = Simulation(federation, "fedrod", NET, rounds=1).run()
    with pytest.raises(FedTailorError, match=r"'fedrod'.*not cut into body and head"):
        two_heads.features(0)
    simulation.engine.holds_states = False  # as that of a deployment
    with pytest.raises(FedTailorError, match="stay at the site"):
        simulation.features(0)


@dataclass(frozen=True)
class Leaky(FedAvg):
    """Sends what it does not declare."""

    def fit(self, client, payload):
        return {**super().fit(client, payload), "labels": client.samples.y}


def test_nothing_leaves_a_client_that_its_method_does_not_declare(federation):
    with pytest.raises(TypeError, match="labels"):
        Simulation(federation, Leaky(), NET, rounds=1).run()


def test_a_personal_model_is_an_independent_plain_module(federation):
    simulation = Simulation(federation, "fedrep", NET, rounds=1).run()
    model = simulation.personal(0)
    before = [p.clone() for p in model.parameters()]
    simulation.personal(1)
    simulation.server.net()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert list(model.state_dict()) == ["hidden.0.weight", "hidden.0.bias", "fc.weight", "fc.bias"]


def test_any_module_is_a_net_and_its_head_can_be_named(federation):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.answer = nn.Linear(4, 3)
            self.first = nn.Linear(5, 4)

        def forward(self, x):
            return self.answer(self.first(x).relu())

    simulation = Simulation(federation, "fedrep", Mine(), head="answer", rounds=1).run()
    assert len(simulation.state(0)["head"]) == 4 * 3 + 3
    assert isinstance(simulation.personal(0), Mine)
    with pytest.raises(FedTailorError, match="cannot be cut at 'first'"):
        Simulation(federation, "fedrep", Mine(), rounds=1)  # the last linear layer written is not the head


def test_clients_without_test_samples_do_not_count():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 5)), np.arange(20) % 2
    federation = Federation.from_clients([(x, y, x[:0], y[:0]), (x, y, x, y)])
    record = Simulation(federation, "fedavg", NET, rounds=1).run().metrics[-1]
    assert record["accuracy"] == record["accuracy_mean"]


def test_wrong_settings_are_named(federation):
    with pytest.raises(FedTailorError, match=r"Unknown key 'round'.*Did you mean 'rounds'"):
        Simulation(federation, "fedavg", NET, round=3)
    with pytest.raises(FedTailorError, match="Did you mean 'fedrep'"):
        Simulation(federation, "fedrap", NET)


def test_clients_by_name_and_folders_as_text(federation, tmp_path):
    named = Federation.from_clients(
        {n: (c.train.x, c.train.y, c.test.x, c.test.y) for n, c in zip("abcd", federation.clients, strict=True)}
    )
    simulation = Simulation(named, "fedrep", "mlp", rounds=1, engine="inline").run()
    assert torch.equal(simulation.state("c")["head"], simulation.state(2)["head"])
    one, two = (simulation.personal(client).state_dict() for client in ("c", 2))
    assert all(torch.equal(one[name], two[name]) for name in two)
    simulation.save_models(str(tmp_path / "mm"))
    assert len(list((tmp_path / "mm").iterdir())) == 4
    with pytest.raises(FedTailorError, match="There is no client 'north'"):
        simulation.personal("north")
    with pytest.raises(FedTailorError, match="There is no client 4"):
        simulation.state(4)


def test_a_method_must_be_one(federation):
    for method in (5, None, dict):
        with pytest.raises(FedTailorError, match=r"method = .* is not a name"):
            Simulation(federation, method, "mlp")
