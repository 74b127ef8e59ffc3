"""What a server may ask of a site, and what the site's policy makes of it."""

from __future__ import annotations

import pytest

from fedtailor import Config
from fedtailor.deploy.policy import Policy, agreed, asked
from fedtailor.errors import FedTailorError

OWN = {"data": {"name": "digits", "fraction": 0.1}}


def config(*words: str) -> Config:
    return Config.load(words=["data=digits", "method=fedrep", "net=mlp", *words])


@pytest.mark.parametrize("method", ["fedrep", "heart", "pgfedsplit", "fedamp", "fedavg-ft"])
def test_a_site_takes_the_config_as_the_server_means_it(method):
    there = config(f"method={method}", "net.hidden=[8, 4]", "join=[0.5, 1.0]", "lr=0.1", "seed=3", "workers=7")
    here = agreed(asked(there), OWN)
    assert asked(here) == asked(there)
    assert (here.settings.join, here.settings.seed, here.data.fraction if hasattr(here.data, "fraction") else 0.1) == (
        (0.5, 1.0),
        3,
        0.1,
    )
    assert here.settings.workers == 0  # how a site works is its own affair
    assert "data" not in asked(there)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("method", "name", "/tmp/evil.py"),
        ("method", "name", "../evil.py"),
        ("method", "name", "evil.py"),
        ("net", "name", "evil.py"),
        ("net", "weights", "secrets.safetensors"),
        ("net", "path", "secrets"),
        ("net", "name", {"name": "mlp"}),
        ("method", "name", 5),
        ("method", "head_epochs", "/etc/passwd"),
    ],
)
def test_nothing_that_a_server_sends_can_name_a_file(kind, key, value):
    values = asked(config())
    values[kind][key] = value
    with pytest.raises(FedTailorError):
        agreed(values, OWN)


@pytest.mark.parametrize(
    "values",
    [
        *(None, 5, "fedrep", []),
        {"data": {"name": "table", "path": "/etc/passwd"}},
        {"engine": "ray"},
        {"method": "a/b"},
        {"method": {"name": "fedrep"}, "net": {"name": "mlp", "hidden": [[[[1]]]]}},
        {"lr": float("nan")},
    ],
)
def test_what_is_no_config_is_refused_in_words(values):
    with pytest.raises(FedTailorError):
        agreed(values, OWN)


def test_weights_are_each_ones_own_file_and_must_be_the_same(tmp_path):
    for name, byte in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / f"{name}.pth").write_bytes(byte)
    there = config("net=resnet18", f"net.weights={tmp_path / 'a.pth'}")
    sent = asked(there)
    assert "weights" not in sent["net"]
    assert agreed(sent, {**OWN, "net": {"weights": str(tmp_path / "b.pth")}}).net.weights.endswith("b.pth")
    for own in ({}, {"net": {"weights": str(tmp_path / "c.pth")}}):
        with pytest.raises(FedTailorError, match="different weights"):
            agreed(sent, {**OWN, **own})


def test_a_policy_for_a_run_lets_that_run_through_and_no_other():
    policy = Policy.for_run(config("batch=16", "rounds=10"))
    policy.check(config("batch=16"))
    policy.check(config("batch=32", "lr=1"))
    for words, said in (
        (["method=fedper"], "takes part in fedrep, not in fedper"),
        (["batch=15"], "batch = 15 is less than 16"),
    ):
        with pytest.raises(FedTailorError, match=said):
            policy.check(config(*words))
    with pytest.raises(FedTailorError, match="fedavg sends model, which may not leave"):
        Policy(("fedavg",), ("body",), 1, 1).check(config("method=fedavg"))
    with pytest.raises(FedTailorError, match=r"method.align_batch = 2 is less than 10"):
        Policy(("fedas",), ("body", "fisher"), 10, 1).check(config("method=fedas", "method.align_batch=2"))


@pytest.mark.parametrize("values", [None, {}, {"methods": ["fedrep"]}])
def test_a_site_without_a_policy_is_told_to_have_one(values):
    with pytest.raises(FedTailorError, match=r"\[policy\].*may_leave"):
        Policy.read(values)
