"""What holds for every method there is: strange federations, equal seeds, interrupted runs, and nothing private on the wire."""

from __future__ import annotations

import dataclasses
import logging
import math
from functools import cache

import numpy as np
import pytest
import torch

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.data.client_data import Split
from fedtailor.engines.base import Outcome
from fedtailor.engines.flower.checks import ReplyChecks
from fedtailor.engines.work import Work
from fedtailor.experiment.onboarding import onboard
from fedtailor.learning import Reply, weighted_mean
from fedtailor.methods import methods
from fedtailor.nets.cnn import CNN
from fedtailor.nets.mlp import MLP

EVERY = sorted(name for name, cls in methods.classes.items() if cls.__module__.startswith("fedtailor.methods."))
FAMILIES = {
    "baseline",
    "fine-tuning",
    "meta",
    "regularized",
    "personalized aggregation",
    "model splitting",
    "prototypes",
    "distillation",
}
TRANSFER = {"akt_steps": 3, "akt_batch": 8}
OPTIONS = {"perada": TRANSFER, "heart": {**TRANSFER, "pgd_steps": 2}}  # what would take long, cut short
WITH_PROXY = {"perada", "heart"}  # the server needs samples
WITH_STAGES = {"heart"}  # the net needs stages
SETTINGS = {"batch": 4, "lr": 0.05, "seed": 5}
SHAPE = (1, 4, 4)


def samples(rng: np.random.Generator, labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Small noisy grey images, lighter the higher their class."""
    y = np.array(labels, dtype=np.int64)
    x = rng.integers(0, 60, size=(len(y), *SHAPE)) + 60 * y[:, None, None, None]
    return x.astype(np.uint8), y


def federated(clients: list[list[int]], tests: list[list[int]] | None = None) -> Federation:
    """Clients with these training labels; by default each is tested on two samples of each of its classes."""
    rng = np.random.default_rng(2)
    tests = [sorted(set(labels)) * 2 for labels in clients] if tests is None else tests
    return Federation.from_clients(
        [(*samples(rng, train), *samples(rng, test)) for train, test in zip(clients, tests, strict=True)]
    )


MIXED = [[0, 1, 2, 2, 1, 0, 0, 0], [1, 1, 1, 2, 2, 0], [2, 2, 2, 2, 2, 1, 0, 2, 1], [0, 1, 0, 1, 0]]
STRANGE = {
    "one client": (lambda: federated([MIXED[0]]), {}),
    "one class a client": (lambda: federated([[0] * 5, [1] * 6, [2] * 4, [0] * 8]), {}),
    "a client with one sample": (lambda: federated([MIXED[0], [1], MIXED[1]]), {}),
    "clients without test samples": (lambda: federated(MIXED, [[], [0, 1], [], []]), {}),
    "most clients drop out": (lambda: federated(MIXED), {"dropout": 0.75}),
    "a batch larger than any client": (lambda: federated(MIXED), {"batch": 64}),
}


def simulation(name: str, federation: Federation, *, options: dict | None = None, **settings) -> Simulation:
    if name in WITH_PROXY:
        x, y = samples(np.random.default_rng(3), [0, 1, 2] * 4)
        federation = dataclasses.replace(federation, server=Split(torch.from_numpy(x), torch.from_numpy(y)))
    options = {**OPTIONS.get(name, {}), **(options or {})}
    if any(f.name == "ft_epochs" for f in dataclasses.fields(methods.classes[name])):
        options["ft_epochs"] = 2
    net = CNN(conv1=2, conv2=2, hidden=4) if name in WITH_STAGES else MLP(hidden=(4,))
    return Simulation(federation, methods.build(name, options), net, **{**SETTINGS, **settings})


def model(simulation: Simulation, client: int) -> torch.Tensor:
    """Everything a client's personal model consists of, in one row."""
    return torch.cat([t.reshape(-1).double() for t in simulation.personal(client).state_dict().values()])


def numbers(record: dict) -> dict:
    """A round's metrics without its times."""
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


@cache
def whole_run(name: str) -> tuple[Simulation, list[dict[str, set[str]]]]:
    """Four rounds with two of four clients in each, and the names that travelled in every step."""
    run = simulation(name, federated(MIXED), rounds=4, join=0.5)
    travelled = [{"up": {name for _, direction, name in run.ledger.totals if direction == "up"}, "down": set()}]
    for _ in run:
        entries = run.ledger.last
        travelled.append({way: {e.name for e in entries if e.direction == way} for way in ("up", "down")})
    return run, travelled


@cache
def plain_run(name: str) -> Simulation:
    """Three rounds with everyone in each, by plain SGD and a plain mean."""
    return simulation(name, federated(MIXED), rounds=3).run()


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", EVERY)
def test_strange_federations_train_without_a_number_that_is_none(name, strange, caplog):
    make, settings = STRANGE[strange]
    with caplog.at_level(logging.WARNING):
        run = simulation(name, make(), rounds=2, **settings).run()
    for record in run.metrics:
        for key, value in numbers(record).items():
            silent = key == "train_loss" and record["replied"] == 0
            assert silent or not isinstance(value, float) or math.isfinite(value), f"{key} = {value}"
    for i in range(len(run.federation.clients)):
        assert torch.isfinite(model(run, i)).all()
    assert "diverged" not in caplog.text
    assert "left out" not in caplog.text


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_numbers_in_two_processes_to_the_bit(name):
    many = simulation(name, federated(MIXED), rounds=4, join=0.5, engine="processes", workers=2).run()
    first, _ = whole_run(name)
    assert [numbers(r) for r in many.metrics] == [numbers(r) for r in first.metrics]
    for i in range(len(MIXED)):
        assert torch.equal(model(many, i), model(first, i))
    many.close()


@pytest.mark.parametrize("name", EVERY)
def test_a_run_taken_up_after_two_rounds_ends_as_if_never_interrupted(name):
    straight, _ = whole_run(name)
    begun = simulation(name, federated(MIXED), rounds=4, join=0.5)
    begun.step()
    begun.step()
    server = {key: t.clone() for key, t in begun.server.state.items()}
    clients = {i: {key: t.clone() for key, t in state.items()} for i, state in begun.engine.states().items()}
    resumed = simulation(name, federated(MIXED), rounds=4, join=0.5)
    resumed.restore(2, server, clients, begun.metrics)
    resumed.run()
    assert [numbers(r) for r in resumed.metrics] == [numbers(r) for r in straight.metrics]
    for i in range(len(MIXED)):
        assert torch.equal(model(resumed, i), model(straight, i))


@pytest.mark.parametrize("name", EVERY)
def test_a_newcomer_gets_a_model_and_changes_nothing_for_the_others(name):
    run, _ = whole_run(name)
    before = {key: t.clone() for key, t in run.server.state.items()}
    newcomer = onboard(run, federated([[0, 0, 0, 2, 2]]))
    assert newcomer.after.total == 4
    assert math.isfinite(newcomer.after.loss)
    assert all(torch.isfinite(t.double()).all() for t in newcomer.model.state_dict().values())
    assert run.server.state.keys() == before.keys()
    assert all(torch.equal(t, run.server.state[key]) for key, t in before.items())


def weighted(federation: Federation, weight: float) -> Federation:
    clients = [
        dataclasses.replace(c, train=dataclasses.replace(c.train, weight=torch.full((len(c.train),), weight)))
        for c in federation.clients
    ]
    return dataclasses.replace(federation, clients=clients)


@pytest.mark.parametrize("name", EVERY)
def test_samples_that_weigh_the_same_are_samples_without_weights(name):
    plain = federated(MIXED)
    runs = [simulation(name, f, rounds=2, dtype="float64").run() for f in (plain, weighted(plain, 3.0))]
    for i in range(len(MIXED)):
        torch.testing.assert_close(model(runs[1], i), model(runs[0], i), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_it_says_what_it_is(name):
    cls = methods.classes[name]
    assert cls.__dict__["__doc__"].strip().endswith(".")
    assert cls.family in FAMILIES
    assert name == "local" or (cls.paper and 2016 < cls.year < 2030)
    assert all(f.metadata.get("meaning") for f in dataclasses.fields(cls))


@pytest.mark.parametrize("name", EVERY)
def test_what_travels_is_declared_and_what_is_kept_never_travels(name):
    run, travelled = whole_run(name)
    method = run.method
    for step in travelled:
        assert step["up"] <= set(method.up)
        assert step["down"] <= set(method.down)
        assert not (step["up"] | step["down"]) & set(method.keeps)
    kept = {key for i in range(len(MIXED)) for key in run.state(i) if not key.startswith("buffers.")}
    assert kept <= {*method.keeps, *method.up, *method.down}  # a client may also hold on to what it sent
    assert bool(method.up) == any(step["up"] for step in travelled)
    assert bool(method.down) == any(step["down"] for step in travelled)


@pytest.mark.parametrize("strange", ["one class a client", "a client with one sample", "clients without test samples"])
@pytest.mark.parametrize("name", EVERY)
def test_a_server_that_looks_closely_refuses_no_honest_answer(name, strange):
    federation = STRANGE[strange][0]()
    run = simulation(name, federation, rounds=3, join=0.7, engine="inline")
    sizes = {i: (len(c.train), len(c.test)) for i, c in enumerate(federation.clients)}
    look = ReplyChecks(run.method.up, sizes, few=max(federation.classes, len(sizes)))
    hellos = {i: Outcome(up) for i, up in run._hellos().items()}
    assert look.refused(Work.HELLO, hellos, {}) == {}
    while run.round < 3:
        run.step()
        work = Work.FIT_AND_SCORE if any(outcome.score for outcome in run.outcomes.values()) else Work.FIT
        assert look.refused(work, run.outcomes, run.traffic.down) == {}


OPTIMIZERS = {
    "adam": {"optimizer": "adam", "lr_schedule": "cosine", "clip_norm": 1.0, "lr": 0.01},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "warmup": 2, "optimizer_state": "kept"},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", EVERY)
def test_it_trains_with_any_optimizer(name, kind):
    run = simulation(name, federated(MIXED), rounds=2, eval_closing="each", **OPTIMIZERS[kind]).run()
    assert all(r.get("diverged", 0) == 0 and math.isfinite(r["loss"]) for r in run.metrics)
    assert not torch.equal(model(run, 0), model(plain_run(name), 0))
    kept = any(key.startswith("optimizer.") for i in range(len(MIXED)) for key in run.state(i))
    assert kept == (kind == "momentum")


@pytest.mark.parametrize("name", EVERY)
def test_a_server_optimizer_steps_where_the_server_averages_and_is_refused_elsewhere(name):
    if not methods.classes[name].averaged:
        with pytest.raises(FedTailorError, match="needs a method whose server averages"):
            simulation(name, federated(MIXED), server_optimizer="adam")
        return
    run = simulation(name, federated(MIXED), rounds=3, eval_closing="each", server_optimizer="adam").run()
    stepped = {key.split(".")[1] for key in run.server.state if key.startswith("server_optimizer.")}
    assert stepped
    assert stepped <= set(run.method.up)
    plain = plain_run(name).server
    assert not any(torch.equal(run.server.state[entry], plain.state[entry]) for entry in stepped)
    assert all(math.isfinite(r["loss"]) for r in run.metrics)


@pytest.mark.parametrize("name", EVERY)
def test_what_it_declares_as_averaged_reaches_the_server_by_the_mean_alone(name):
    """With those entries taken out of the replies, and means of them at server.mean, the server's state is the same."""
    options = {"tau": 2} if name == "pgfedsplit" else {}
    plain = simulation(name, federated(MIXED), rounds=3, options=options).run() if options else plain_run(name)
    run = simulation(name, federated(MIXED), rounds=3, options=options)
    method, asked = run.method, set()
    hidden = set(method.averaged) - set(method.individually)
    aggregate = type(method).aggregate

    class Hiding:
        def aggregate(self, server, replies):
            full = {reply.client: reply for reply in replies}

            def mean(server, replies, entry, by):
                asked.add(entry)
                assert by == method.mean_by or method.mean_by == "own weights"
                return weighted_mean([full[r.client] for r in replies], entry, by)

            server.means = dict.fromkeys(hidden, mean)
            kept = [{k: v for k, v in r.payload.items() if k not in hidden} for r in replies]
            aggregate(method, server, [Reply(r.client, r.samples, p) for r, p in zip(replies, kept, strict=True)])

    run.aggregation.method = Hiding()
    run.run()
    assert asked == hidden
    for entry, value in plain.server.state.items():
        torch.testing.assert_close(run.server.state[entry], value)
