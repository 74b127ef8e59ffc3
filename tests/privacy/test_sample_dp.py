"""Privacy for samples: what leaves a client is a function of noisy sums alone, and one sample moves each sum by a bounded length.

`replayed` is the proof for every method that claims it. A run records the noisy sums of one client. A second run, in which one sample of
that client is another, is given the same noisy sums in place of its own. Then (1) its own sums, before the noise, must be the same
wherever that sample was not drawn, and otherwise differ by at most two clips (one for the sample that goes, one for that which comes), and
(2) everything that leaves the client must be the same, bit for bit. That a sum depends on other samples' labels, or on a head that was
trained on them without noise, breaks (1) though each gradient in it is clipped.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor import Federation, FedTailorError, Simulation
from fedtailor.analysis.results import read_results
from fedtailor.data.client_data import Split
from fedtailor.experiment.config import Config
from fedtailor.experiment.run import Stop, resume, start
from fedtailor.learning import Client, Payload
from fedtailor.learning.private_steps import STEPS, PrivateSteps
from fedtailor.methods import Method, methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedrep import FedRep
from fedtailor.nets.cnn import CNN
from fedtailor.nets.mlp import MLP
from fedtailor.nets.resnet import ResNet18
from fedtailor.privacy.sample_dp import EPSILON, Budget, SampleOptions, budget, why_not
from fedtailor.privacy.sampled_gaussian import epsilon_of
from fedtailor.report.tables import brief_sheet

OWN = {name: cls for name, cls in methods.classes.items() if cls.__module__.startswith("fedtailor.methods.")}
SOUND = sorted(name for name, cls in OWN.items() if not why_not(cls))
TRANSFER = {"akt_steps": 2, "akt_batch": 8}
OPTIONS = {"perada": TRANSFER, "heart": {**TRANSFER, "pgd_steps": 1}}
SHAPE = (1, 4, 4)
WATCHED, REPLACED = 1, 2  # a client, and one of its samples
CLIP = 0.5


def images(rng: np.random.Generator, labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    y = np.array(labels)
    return (rng.normal(size=(len(y), *SHAPE)) + y[:, None, None, None]).astype(np.float32), y


def federation(*, other: bool = False) -> Federation:
    """Three clients; in the `other` one, a sample of the watched client is of another class, and far away."""
    rng = np.random.default_rng(1)
    clients = [(*images(rng, [0, 1, 2, 0] * 3), *images(rng, [0, 1, 2])) for _ in range(3)]
    if other:
        clients[WATCHED][0][REPLACED] = 30.0
        clients[WATCHED][1][REPLACED] = 0
    made = Federation.from_clients(clients)
    x, y = images(np.random.default_rng(3), [0, 1, 2] * 4)
    return dataclasses.replace(made, server=Split(torch.from_numpy(x), torch.from_numpy(y)))


def simulated(method: str | Method, data: Federation, clip: float = CLIP, noise: float = 1.0, **settings) -> Simulation:
    """A run whose clients have a budget that is given rather than solved for."""
    if isinstance(method, str):
        method = methods.build(method, OPTIONS.get(method, {}))
    net = CNN(conv1=2, conv2=2, hidden=4) if method.name == "heart" else MLP(hidden=(4,))
    settings = {"rounds": 2, "batch": 4, "lr": 0.1, "engine": "inline", **settings}
    run = Simulation(data, method, net, **settings)
    sizes = [len(c.train) for c in data.clients]
    run.worker.protect({i: Budget(n, 4, 1000, noise, clip, math.inf, 1e-5) for i, n in enumerate(sizes)})
    return run


@dataclasses.dataclass
class Taped(PrivateSteps):
    """Record noisy sums, or take them from a tape."""

    tape: list[tuple[Tensor, Tensor]] = dataclasses.field(default_factory=list)
    found: list[tuple[bool, float]] | None = (
        None  # of a replay: whether the sample was drawn, and how far the sum has moved
    )

    def drawn(self, steps):
        for rows in super().drawn(steps):
            self.rows = rows
            yield rows

    def release(self, total: Tensor) -> Tensor:
        noisy = super().release(total)
        if self.found is None:
            self.tape.append((total, noisy.clone()))
            return noisy
        before, noisy = self.tape.pop(0)
        self.found.append((REPLACED in self.rows.tolist(), (total - before).norm().item()))
        return noisy.clone()


def taped(run: Simulation, tape: list, found: list | None) -> list[dict]:
    """Run a simulation with the watched client on a tape; return all that left it, round by round."""
    usual = run.worker._private

    def private(client: Client) -> PrivateSteps | None:
        steps = usual(client)
        if client.id != WATCHED or steps is None:
            return steps
        return Taped(**{f.name: getattr(steps, f.name) for f in dataclasses.fields(steps)}, tape=tape, found=found)

    run.worker._private = private  # type: ignore[method-assign]
    left = []
    while not run.rounds_done:
        run.step()
        outcome = run.outcomes[WATCHED]
        left.append({**outcome.up, "loss": outcome.loss, "samples": outcome.samples, **outcome.logged})
    return left


def replayed(method: str | Method, **settings) -> tuple[list[tuple[bool, float]], bool]:
    """Return of each step whether the replaced sample was drawn and how far the sum moved, and whether all that left is the same."""
    tape: list[tuple[Tensor, Tensor]] = []
    first = taped(simulated(method, federation(), **settings), tape, None)
    found: list[tuple[bool, float]] = []
    second = taped(simulated(method, federation(other=True), **settings), tape, found)
    assert not tape
    same = all(a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a) for a, b in zip(first, second, strict=True))
    return found, same


def equal(a: Tensor | float, b: Tensor | float) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("name", SOUND)
def test_what_leaves_is_a_function_of_noisy_sums_that_one_sample_moves_by_a_bounded_length(name: str) -> None:
    found, same = replayed(name)
    assert same
    assert all(moved <= 2 * CLIP * (1 + 1e-5) if drawn else moved == 0 for drawn, moved in found)
    if name != "local":  # which sends nothing
        assert {drawn for drawn, _ in found} == {True, False}


@pytest.mark.parametrize("name", SOUND)
def test_without_a_signal_different_samples_give_the_same_bits(name: str) -> None:
    one, two = (
        taped(simulated(name, federation(other=other), clip=1e-30, noise=1e30), [], None) for other in (False, True)
    )
    assert all(equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)


@dataclasses.dataclass(frozen=True)
class HeadAtHome(FedRep):
    """FedRep whose head trains without noise: the trap, since the body's gradients pass through it."""

    name = "head-at-home"

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = self.received(client, payload)
        private, client.private = client.private, None
        client.train(self.kept(net))
        client.private = private
        client.train(self.shared(net))
        return self.reply(client, net)


@dataclasses.dataclass(frozen=True)
class Counting(FedAvg):
    """FedAvg that sends how many samples of class 0 there are."""

    name = "counting"

    def fit(self, client: Client, payload: Payload) -> Payload:
        reply = super().fit(client, payload)
        return {"model": reply["model"] + client.label_counts[0]}


def test_the_proof_finds_a_head_trained_without_noise() -> None:
    found, _ = replayed(HeadAtHome())
    assert any(moved > 0 for drawn, moved in found if not drawn)


def test_the_proof_finds_what_does_not_come_from_training() -> None:
    found, same = replayed(Counting())
    assert not same
    assert all(moved == 0 for drawn, moved in found if not drawn)


# -- what is refused ------------------------------------------------------------------------------------------------------------------


def refused(match: str, method: str | Method = "fedavg", net: object = None, **settings) -> None:
    with pytest.raises(FedTailorError, match=match):
        Simulation(federation(), method, net, engine="inline", privacy={"sample_epsilon": 4}, **settings)


def test_every_method_is_sound_or_refused_with_a_reason() -> None:
    assert {"fedavg", "fedrep", "fedper", "fedbabu", "ditto", "fedafk", "fedamp"} <= set(SOUND)
    for name in sorted(OWN.keys() - SOUND):
        assert OWN[name].sample_dp, f"{name} does not say why samples cannot be protected"
        refused(
            f"{name} cannot protect single samples, because {OWN[name].sample_dp}".replace("(", r"\(").split(r"\(")[0],
            name,
        )


def test_a_method_that_says_nothing_is_refused() -> None:
    refused("head-at-home cannot protect .* overrides what a client does", HeadAtHome())


def test_settings_that_look_at_all_samples_are_refused() -> None:
    refused("class_weights = 'balanced'", class_weights="balanced")
    refused("patience", patience=2, validation=0.2)
    refused("group normalisation", net=ResNet18(stem="small"))


def test_options_without_an_epsilon_are_refused() -> None:
    with pytest.raises(FedTailorError, match="belong to privacy"):
        Simulation(federation(), "fedavg", privacy={"sample_clip": 2.0})


# -- what is spent --------------------------------------------------------------------------------------------------------------------


def test_every_client_ends_at_the_epsilon_that_was_asked_for() -> None:
    run = Simulation(
        federation(), "fedrep", MLP(hidden=(4,)), rounds=3, batch=5, engine="inline", privacy={"sample_epsilon": 2.0}
    ).run()
    for i in range(3):
        own, taken = run.worker.budgets[i], int(run.state(i)[STEPS])
        assert taken == own.steps == 3 * 2 * (12 // 5)  # rounds × (head, body) × batches of 5 in 12 samples
        assert 0.99 * 2.0 <= epsilon_of(5 / 12, own.noise, taken, 1e-5) <= 2.0
        assert run.outcomes[i].logged == {EPSILON: own.epsilon}
    spent = [record[EPSILON] for record in run.metrics]
    assert spent == sorted(spent)
    assert spent[-1] == max(own.epsilon for own in run.worker.budgets.values())


def test_only_rounds_in_which_a_client_takes_part_count() -> None:
    settings = {"rounds": 6, "join": 0.34, "batch": 4, "engine": "inline", "privacy": {"sample_epsilon": 2.0}}
    run = Simulation(federation(), "fedavg", MLP(hidden=(4,)), **settings).run()
    assert [int(run.state(i).get(STEPS, 0)) for i in range(3)] == [run.worker.budgets[i].steps for i in range(3)]
    assert sum(own.steps for own in run.worker.budgets.values()) == 6 * (12 // 4)


def test_a_client_without_budget_stops_training(caplog: pytest.LogCaptureFixture) -> None:
    run = simulated("fedavg", federation(), rounds=3)
    own = dataclasses.replace(run.worker.budgets[0], steps=4)  # of 3 steps a round
    run.worker.protect({**run.worker.budgets, 0: own})
    run.step()
    run.step()
    assert "takes only 1 of 3 steps" in caplog.text
    sent = run.server.state["model"]
    run.step()
    assert int(run.state(0)[STEPS]) == 4
    assert torch.equal(run.traffic.up[0]["model"], sent)
    assert not torch.equal(run.traffic.up[1]["model"], sent)


def test_a_budget_is_that_of_the_clients_own_samples() -> None:
    few, many = (budget(SampleOptions(sample_epsilon=2.0), n, 10, 30) for n in (40, 400))
    assert few.rate == 0.25
    assert many.rate == 0.025
    assert few.noise > 2 * many.noise
    assert few.spent(0) == 0
    assert 0 < few.spent(10) < few.spent(30) == few.epsilon <= 2.0


# -- numbers --------------------------------------------------------------------------------------------------------------------------


def test_closing_steps_and_what_stays_at_home_have_no_noise() -> None:
    run = simulated(methods.build("fedavg-ft", {"ft_epochs": 2}), federation(), noise=1.0).run()
    assert int(run.state(0)[STEPS]) == 2 * 3
    again = simulated("local", federation(), noise=1e6).run()
    plain = Simulation(federation(), "local", MLP(hidden=(4,)), rounds=2, batch=4, lr=0.1, engine="inline", fast="off")
    assert torch.equal(again.state(0)["model"], plain.run().state(0)["model"])


def test_off_is_the_same_to_the_bit() -> None:
    settings = {"rounds": 2, "batch": 4, "engine": "inline"}
    one, two = (Simulation(federation(), "fedafk", MLP(hidden=(4,)), privacy=p, **settings).run() for p in (None, {}))
    assert torch.equal(one.server.state["body"], two.server.state["body"])


def test_the_same_bits_in_processes() -> None:
    settings = {"rounds": 2, "batch": 4, "privacy": {"sample_epsilon": 3.0}}
    one, two = (
        Simulation(federation(), "fedper", MLP(hidden=(4,)), engine=engine, workers=2, **settings).run()
        for engine in ("inline", "processes")
    )
    assert torch.equal(one.server.state["body"], two.server.state["body"])
    assert [r[EPSILON] for r in one.metrics] == [r[EPSILON] for r in two.metrics]
    two.close()


def test_a_resumed_run_has_the_same_bits_and_every_clients_epsilon_in_its_files(tmp_path: Path) -> None:
    words = ["data=heart", "net=mlp", "net.hidden=4", "method=fedper", "rounds=3", "batch=40", "engine=inline"]
    config = Config.load(words=[*words, "checkpoint_every=1", "privacy.sample_epsilon=6"])
    stop = Stop()

    def after_two(record: dict) -> None:
        stop.asked = record["round"] == 2

    start(config, tmp_path / "whole")
    start(config, tmp_path / "parts", [after_two], stop)
    resume(tmp_path / "parts")
    files = [
        (tmp_path / run / name).read_bytes() for name in ("clients.jsonl", "clients.csv") for run in ("whole", "parts")
    ]
    assert files[0] == files[1]
    assert files[2] == files[3]
    table = list(csv.DictReader((tmp_path / "whole" / "clients.csv").open()))
    assert all(0.98 * 6 <= float(row["sample_epsilon"]) <= 6 for row in table)
    sheet = brief_sheet(read_results(tmp_path / "whole"))
    assert dict(zip(sheet.header, sheet.rows[0], strict=True))["ε of samples"] in ("5.99", "6", "5.98")
