"""Hostile clients in a simulation, and robust means against them: whose scores count, which bits come out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor as ft
from fedtailor import Config, Federation, FedTailorError, Simulation
from fedtailor.attacks.scaled import Scaled
from fedtailor.deploy.policy import PLAIN
from fedtailor.deploy.settings import with_overrides
from fedtailor.engines import Inline
from fedtailor.engines.worker import Worker
from fedtailor.experiment.run import Stop, resume, start
from fedtailor.experiment.run_folder import read_lines
from fedtailor.learning import Protocol
from fedtailor.methods import methods
from fedtailor.nets.mlp import MLP
from fedtailor.robust import robust_means
from fedtailor.robust.trimmed import Trimmed

NET = MLP(hidden=(6,))
ATTACKS = {
    "scaled": {"name": "scaled", "share": 0.3},
    "noise": {"name": "noise", "share": 0.3},
    "backdoor": {"name": "backdoor", "share": 0.3, "size": 2, "poison": 1.0},
    "label-flip": {"name": "label-flip", "share": 0.3},
}


@pytest.fixture
def ten() -> Federation:
    """Ten clients with samples of three classes."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(3, 5)) * 2
    parts = []
    for k in range(10):
        y = rng.choice(3, size=24, p=np.roll([0.6, 0.3, 0.1], k))
        x = (centres[y] + rng.normal(size=(24, 5))).astype(np.float32)
        parts.append((x[:12], y[:12], x[12:], y[12:]))
    return Federation.from_clients(parts)


def run(federation: Federation, method: str = "fedavg", **settings) -> Simulation:
    return Simulation(
        federation, method, NET, **{"rounds": 3, "lr": 0.1, "batch": 6, "engine": "inline", **settings}
    ).run()


def numbers(simulation: Simulation) -> list[dict]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds_")} for r in simulation.metrics]


def test_scores_are_those_of_clients_that_do_not_attack(ten):
    simulation = run(ten, attack=ATTACKS["scaled"])
    hostile = simulation.attackers.clients
    assert len(hostile) == 3
    assert set(simulation.scores) == set(range(10)) - hostile
    accuracies = sorted(score.accuracy for score in simulation.scores.values())
    last = simulation.metrics[-1]
    assert last["accuracy_mean"] == pytest.approx(np.mean(accuracies))
    assert last["worst_decile"] == accuracies[0]
    assert last["attackers"] == 3
    assert "attackers" not in run(ten).metrics[-1]


def test_attackers_send_the_scaled_change_and_the_others_what_they_trained(ten):
    plain, attacked = run(ten, rounds=1), run(ten, rounds=1, attack=ATTACKS["scaled"], guard=0)
    sent = plain.traffic.down[0]["model"]
    for i in range(10):
        change = plain.traffic.up[i]["model"] - sent
        factor = 10 if i in attacked.attackers.clients else 1
        torch.testing.assert_close(attacked.traffic.up[i]["model"] - sent, factor * change, rtol=1e-4, atol=1e-6)


def test_the_new_state_is_the_median_change_from_what_was_sent(ten):
    simulation = run(ten, rounds=1, robust="median", attack=ATTACKS["scaled"])
    up = torch.stack([simulation.traffic.up[i]["model"] for i in range(10)]).double().numpy()
    np.testing.assert_allclose(simulation.server.state["model"].numpy(), np.median(up, axis=0), atol=1e-6)
    assert simulation.metrics[-1]["tolerated"] == 4


def test_every_averaged_entry_of_a_method_gets_the_robust_mean_and_the_rest_is_told(ten, caplog):
    simulation = run(ten, "pgfedsplit", robust=Trimmed(share=0.3))
    assert set(simulation.server.means) == {"body", "head"}
    assert "pgfedsplit does not only average alpha, prototypes, classes, squares" in caplog.text
    caplog.clear()
    run(ten, "fedrep", robust="median")
    assert not caplog.text


@pytest.mark.parametrize("name", robust_means.classes)
def test_a_server_optimizer_takes_its_step_towards_the_robust_mean(ten, name):
    plain, stepped = (
        run(ten, rounds=1, robust=name, **more) for more in ({}, {"server_optimizer": "momentum", "server_lr": 1.0})
    )
    torch.testing.assert_close(plain.server.state["model"], stepped.server.state["model"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attack", ATTACKS)
def test_processes_give_the_bits_of_one_process(ten, attack):
    options = {"rounds": 2, "attack": ATTACKS[attack], "robust": "trimmed"}
    one, many = (run(ten, "fedrep", engine=engine, workers=2, **options) for engine in ("inline", "processes"))
    assert numbers(one) == numbers(many)
    assert torch.equal(one.server.state["body"], many.server.state["body"])
    many.close()


@pytest.mark.slow
def test_ray_gives_the_bits_of_one_process(ten):
    pytest.importorskip("ray")
    options = {"rounds": 2, "attack": ATTACKS["backdoor"], "robust": "trimmed"}
    one, many = (run(ten, "fedrep", engine=engine, workers=2, **options) for engine in ("inline", "ray"))
    many.close()
    assert numbers(one) == numbers(many)
    assert torch.equal(one.server.state["body"], many.server.state["body"])


def test_the_success_of_a_backdoor_is_the_share_of_triggered_samples_taken_for_its_class(ten):
    simulation = run(ten, attack={"name": "backdoor", "share": 0.5, "size": 2, "factor": 3, "poison": 1.0}, rounds=8)
    shares = []
    for i in simulation.scores:
        test = ten.clients[i].test
        x = test.x[test.y != 0].clone()
        x[:, -2:] = 3.0
        if len(x):
            shares.append((simulation.personal(i).eval()(x).argmax(1) == 0).double().mean().item())
    last = simulation.metrics[-1]
    assert last["backdoor_success"] == pytest.approx(np.mean(shares))
    assert (
        last["backdoor_success"]
        > 0.5
        > run(ten, attack={"name": "backdoor", "share": 0, "size": 2}).metrics[-1]["backdoor_success"]
    )


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted(tmp_path):
    words = "data=digits data.fraction=0.2 clients=8 net=mlp net.hidden=[6] rounds=3 checkpoint_every=1 engine=inline method=fedper"
    config = Config.load(
        words=[*words.split(), "attack=noise", "attack.share=0.3", "robust=krum", "robust.attackers=2"]
    )
    stop = Stop()

    def watch(record):
        stop.asked = record["round"] == 2

    start(config, tmp_path / "whole")
    start(config, tmp_path / "parts", [watch], stop)
    resume(tmp_path / "parts")
    whole, parts = (
        [
            {k: v for k, v in r.items() if not k.startswith("seconds_")}
            for r in read_lines(tmp_path / p / "metrics.jsonl")
        ]
        for p in ("whole", "parts")
    )
    assert len(whole) == 3
    assert whole == parts
    assert (tmp_path / "whole" / "clients.jsonl").read_bytes() == (tmp_path / "parts" / "clients.jsonl").read_bytes()


def test_a_comparison_in_python_and_on_the_command_line_is_the_same_and_says_whose_scores_these_are(
    tmp_path: Path, fedtailor, ten
):
    words = "data=digits data.fraction=0.2 clients=6 net=mlp net.hidden=[6] rounds=1 engine=inline"
    typed = fedtailor(
        "compare", "fedavg", "fedrep", *words.split(), "attack=scaled", "attack.share=0.3", "robust=trimmed",
        "--out", tmp_path / "typed",
    )  # fmt: skip
    assert "2 of 6 clients attack (scaled, share=0.3, factor=10.0)" in " ".join(typed.split())
    study = ft.compare(
        "digits", ["fedavg"], seeds=1, out=tmp_path / "called", callbacks=[], clients=6, rounds=1, engine="inline",
        net=MLP(hidden=(6,)), attack={"name": "scaled", "share": 0.3}, robust=Trimmed(),
    )  # fmt: skip
    assert study.state == "finished"
    config = Config.load(tmp_path / "typed" / "fedavg-s0" / "config.toml")
    assert (config.attack, config.robust) == (Scaled(share=0.3), Trimmed())
    assert Config.load(tmp_path / "called" / "fedavg-s0" / "config.toml").attack == config.attack
    rows = json.loads((tmp_path / "typed" / "fedrep-s0" / "clients.jsonl").read_text().splitlines()[-1])["accuracy"]
    assert sum(value is None for value in rows) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack.share=0.2"], r"attack\.share needs attack=NAME beside it\. Known: backdoor, label-flip"),
        (["robust=trimed"], "There is no robust 'trimed'. Did you mean 'trimmed'"),
        (["robust=median", "robust.share=0.2"], r"Unknown key 'robust\.share'"),
        (
            ["method=fedamp", "robust=median"],
            "needs a method whose server averages, but fedamp uses each client's model by itself",
        ),
        (
            ["method=fedrep", "robust=median", "privacy.body=secure-sum"],
            "looks at each reply, which privacy.body = secure-sum does not",
        ),
        (["method=fedrep", "privacy.body=secure-sum+robust(median)"], "looks at single replies"),
        (["method=fedrep", "privacy.body=robust(trimmed, 0.3)"], "options are key=value"),
        (["method=fedrep", "privacy.body=robust(medium)"], "There is no robust 'medium'. Did you mean 'median'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(words, message):
    with pytest.raises(FedTailorError, match=message):
        Config.load(words=words)


def test_a_rule_by_name_is_kept_and_used(ten):
    config = Config.load(words=["method=fedrep", "privacy.body=robust(trimmed, share=0.3)"])
    assert Config.from_values(config.values()) == config
    assert PLAIN.fullmatch(config.values()["privacy"]["body"])  # so that a site accepts it
    by_name = run(ten, "fedrep", privacy={"body": "robust(trimmed, share=0.3)"})
    assert torch.equal(by_name.server.state["body"], run(ten, "fedrep", robust=Trimmed(share=0.3)).server.state["body"])


def test_none_is_no_attack_and_no_robust_mean_and_leaves_no_trace_in_a_config(ten):
    config = Config.load(words=["robust=trimmed", "robust.share=0.3", "robust=none", "attack=none"])
    assert (config.robust, config.attack) == (None, None)
    assert not {"robust", "attack"} & set(config.values())
    assert numbers(run(ten, robust="none", attack="none")) == numbers(run(ten))


def test_local_sends_nothing_and_so_needs_no_robust_mean(ten):
    assert numbers(run(ten, "local", robust="median")) == numbers(run(ten, "local"))


@pytest.mark.parametrize(
    ("robust", "join", "message"),
    [
        ("median", 0.2, "robust = median needs at least 3 replies per round to do without a hostile one, but only 2"),
        ("krum", 0.4, "robust = krum needs at least 5 replies"),
        (
            {"name": "krum", "attackers": 4},
            1.0,
            r"robust\.attackers = 4 needs at least 11 replies per round, but only 10",
        ),
    ],
)
def test_rounds_with_too_few_replies_are_refused(ten, robust, join, message):
    with pytest.raises(FedTailorError, match=message):
        run(ten, robust=robust, join=join)


def test_no_deployment_can_attack(ten):
    with pytest.raises(FedTailorError, match="attack = scaled is for simulations only"):
        with_overrides({}, ["data=digits", "clients=4", "attack=scaled"])

    class Sites(Inline):
        trusts_clients = False

    engine = Sites(Worker(ten, methods.build("fedavg", {}), NET, None, Protocol()))
    with pytest.raises(FedTailorError, match="attack = scaled is for simulations only"):
        Simulation(ten, "fedavg", NET, engine=engine, attack="scaled")
