"""A config: words, files, defaults, and errors that help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor as ft
from fedtailor import Config, FedTailorError
from fedtailor.data.pool import sources
from fedtailor.data.task import Task
from fedtailor.experiment.config import method_overrides, read_toml
from fedtailor.experiment.run import carry_out, start
from fedtailor.nets.mlp import MLP


def test_words_reach_the_right_place():
    words = [
        "method=fedrep",
        "method.head_epochs=5",
        "partition.beta=0.3",
        "lr=0.1",
        "join=[0.2, 0.9]",
        "net=lenet",
        "seed=4",
    ]
    config = Config.load(words=words)
    assert config.method.head_epochs == 5
    assert config.partition.beta == 0.3
    assert config.net.name == "lenet"
    assert (config.settings.lr, config.settings.join_range, config.settings.seed) == (0.1, (0.2, 0.9), 4)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("net.hidden=128", (128,)),
        ("net.hidden=128,64", (128, 64)),
        ("net.hidden=[128, 64]", (128, 64)),
        ("net.hidden=[]", ()),
        ("data.features=sex,age", ("sex", "age")),
        ("data.features=[sex, age]", ("sex", "age")),
        ('data.features=["sex", "age"]', ("sex", "age")),
        ("data.features=2020", ("2020",)),
        ("metrics=auroc", ("auroc",)),
        ("metrics=auroc,log_loss", ("auroc", "log_loss")),
        ("metrics=[auroc,log_loss]", ("auroc", "log_loss")),
        ("join=0.1,0.5", (0.1, 0.5)),
        ("class_weights=1,2.5", (1.0, 2.5)),
        ("method.keep=head,*.bias", ("head", "*.bias")),
    ],
)
def test_lists_as_a_person_types_them(word, value, tmp_path):
    config = Config.load(words=["method=fedavg", "data=table", "net=mlp", word])
    part, _, name = word.partition("=")[0].rpartition(".")
    assert getattr(getattr(config, part or "settings"), name) == value
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert Config.load(tmp_path / "c.toml") == config


def test_one_entry_alone_is_a_list_in_python_too():
    assert MLP(hidden=128) == MLP(hidden=[128]) == MLP(hidden=(128,))
    assert ft.Protocol(metrics="auroc").metrics == ft.Protocol(metrics=["auroc"]).metrics == ("auroc",)
    assert ft.FedAvg(keep="head") == ft.FedAvg(keep=("head",))
    assert sources.build("table", {"features": "age"}).features == ("age",)


def test_a_methods_own_options_may_be_lists():
    assert method_overrides("fedavg:keep=head,norm") == ["method=fedavg", "method.keep=head,norm"]
    assert method_overrides("fedrep:head_epochs=5,keep=[head]") == [
        "method=fedrep",
        "method.head_epochs=5",
        "method.keep=[head]",
    ]


def test_the_written_config_is_complete_and_reads_back_the_same(tmp_path):
    config = Config.load(
        words=["method=fedprox", "method.mu=0.5", "data.fraction=0.5", "join=[0.1,1.0]", "net=mlp", "net.hidden=[7,8]"]
    ).completed()
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    again = Config.load(path)
    assert again == config
    assert again.to_toml() == config.to_toml()
    assert read_toml(path)["method"] == {"name": "fedprox", "keep": [], "mu": 0.5}
    assert read_toml(path)["clients"] == 20


def test_naming_another_method_drops_the_options_of_the_first(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[method]\nname = "fedrep"\nhead_epochs = 3\n[data]\nname = "digits"\nfraction = 0.5\n')
    assert Config.load(path, ["method=fedprox"]).method.mu == 0.001
    assert Config.load(path, ["method=fedrep"]).method.head_epochs == 3
    assert Config.load(path, ["data=mnist"]).data_settings.fraction == 0.5


def test_data_brings_a_partition_that_fits():
    har = Config.load(words=["data=har"])
    assert (har.partition.name, har.settings.clients) == ("natural", 0)
    assert Config.load(words=["data=har", "net=mlp", "partition=iid"]).net.name == "mlp"


def arrays(path, x, y=None):
    np.savez(path, x=x, y=np.arange(len(x)) % 2 if y is None else y)
    return ["data=arrays", f"data.path={path}", "clients=3", "partition=iid", "rounds=1", "engine=inline"]


@pytest.mark.parametrize(
    ("x", "net"),
    [
        (np.random.default_rng(0).normal(size=(40, 5)), "mlp"),
        (np.random.default_rng(0).normal(size=(40, 3, 20)), "cnn1d"),
        (np.zeros((40, 28, 28), np.uint8), "cnn"),
        (np.arange(400).reshape(40, 10) % 30, "fasttext"),
    ],
    ids=["numbers", "series", "images", "text"],
)
def test_the_net_fits_the_samples_and_the_run_folder_names_it(x, net, tmp_path):
    words = arrays(tmp_path / "a.npz", x)
    first = start(Config.load(words=words), tmp_path / "run")
    assert read_toml(tmp_path / "run" / "config.toml")["net"]["name"] == net
    again = start(Config.load(tmp_path / "run" / "config.toml"), tmp_path / "again")
    assert (tmp_path / "again" / "config.toml").read_bytes() == (tmp_path / "run" / "config.toml").read_bytes()
    assert torch.equal(first.server.state["body"], again.server.state["body"])
    assert carry_out(Config.load(words=words), tmp_path / "run") is None  # the same command finds the same run
    with pytest.raises(FedTailorError, match=r"other settings \(net\.name"):
        carry_out(Config.load(words=[*words, "net=lenet" if net == "mlp" else "net=mlp"]), tmp_path / "run")


def test_the_net_fits_the_samples_of_a_federation_of_pfllib(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for client in range(2):
            np.savez(tmp_path / part / f"{client}.npz", x=np.ones((4, 5), np.float32), y=np.arange(4) % 2)
    config = Config.load(words=["data=pfllib", f"data.path={tmp_path}"]).completed()
    assert (config.net, config.partition.name, config.settings.clients) == (MLP(), "natural", 0)


def test_options_of_a_net_that_is_not_named_are_those_of_the_one_that_fits(tmp_path):
    words = arrays(tmp_path / "a.npz", np.ones((20, 5), np.float32))
    assert Config.load(words=[*words, "net.hidden=7"]).completed().net == MLP(hidden=(7,))
    with pytest.raises(FedTailorError, match=r"Unknown key 'net\.hiden'\. Did you mean 'hidden'\?"):
        Config.load(words=[*words, "net.hiden=7"])  # before anything is read
    with pytest.raises(FedTailorError, match=r"Unknown key 'net\.hidden'"):
        Config.load(words=["data=agnews", "net.hidden=7"]).net.chosen(Task((5,), 2, vocabulary=9))


@pytest.mark.parametrize(("samples", "clients"), [(3, 1), (10, 2), (33, 8), (400, 20)])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_few_samples_are_dealt_to_as_many_clients_as_they_are_enough_for(samples, clients, partition, tmp_path, caplog):
    words = [
        *arrays(tmp_path / "a.npz", np.ones((samples, 5), np.float32), np.arange(samples) % 10),
        f"partition={partition}",
        "clients=0",
    ]
    config = Config.load(words=words)
    federation = config.federation()
    assert len(federation.clients) == clients
    assert (f"so there are {clients}; clients=…" in caplog.text) == (clients < 20)
    assert config.completed(federation).settings.clients == clients


def test_two_classes_cannot_be_dealt_to_twenty_clients_by_class(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("fedtailor.data.partition.TRIES", 1000)
    words = arrays(tmp_path / "a.npz", np.ones((400, 5), np.float32))
    config = Config.load(words=words[:2])
    assert len(config.federation().clients) == 5
    assert "partition=dirichlet cannot deal these 400 samples well to the usual 20 clients" in caplog.text


def test_the_minimum_of_a_partition_counts(tmp_path):
    words = arrays(tmp_path / "a.npz", np.ones((100, 5), np.float32))
    few = Config.load(words=[*words, "partition=dirichlet", "partition.minimum=30", "partition.beta=10", "clients=0"])
    assert len(few.federation().clients) == 3
    with pytest.raises(FedTailorError, match="20 clients with at least 30 samples each"):
        Config.load(words=[*words, "partition=dirichlet", "partition.minimum=30", "clients=20"]).federation()


def test_data_keys_are_suggested_whether_they_are_its_own_or_those_of_all():
    with pytest.raises(
        FedTailorError, match=r"Did you mean 'fraction'\? Allowed: root, fraction, proxy, server_share\."
    ):
        Config.load(words=["data.fractoin=1"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ruonds=3", "Unknown key 'ruonds'. Did you mean 'rounds'?"),
        ("method=fedraep", "Did you mean 'fedrep'?"),
        ("method.head_epoch=2", "Unknown key 'method.head_epoch'. Did you mean 'head_epochs'?"),
        ("partition.bta=2", "Did you mean 'beta'?"),
        ("data.fractoin=2", "Unknown key 'data.fractoin'"),
        ("method.head_epochs=many", "method.head_epochs = 'many' is not allowed: expected int ≥ 0"),
        ("lr=0", "lr = 0 is not allowed: expected float > 0"),
        ("dtype=float16", "expected float32 | float64"),
        ("join=1.5", "join = 1.5 is not allowed"),
        ("rounds", "not of the form key=value"),
        ("mehtod.x=1", "Did you mean 'method'?"),
        ("device=tpu", "device = 'tpu' is not available"),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(word, message):
    with pytest.raises(FedTailorError) as error:
        Config.load(words=[word])
    assert message in str(error.value)


def test_a_broken_or_missing_file_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(FedTailorError, match=r"bad\.toml' is not valid TOML"):
        Config.load(path)
    with pytest.raises(FedTailorError, match="does not exist"):
        Config.load(tmp_path / "none.toml")


def test_a_fraction_of_the_data_is_drawn_by_the_seed():
    sizes = []
    for seed in (0, 0, 1):
        federation = Config.load(words=["data.fraction=0.5", f"seed={seed}", "partition=iid"]).federation()
        sizes.append([c.train.y.tolist() for c in federation.clients])
    assert sizes[0] == sizes[1] != sizes[2]
    assert sum(len(c.train) + len(c.test) for c in federation.clients) == round(1797 / 2)


METHOD = '''
from dataclasses import dataclass
from fedtailor.methods import methods
from fedtailor.methods.fedavg import FedAvg
from fedtailor.registry import option

@methods.register("mine")
@dataclass(frozen=True)
class Mine(FedAvg):
    """My own."""
    strength: float = option(0.5, "how much")
'''


def test_a_method_in_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    config = Config.load(words=[f"method={path}", "method.strength=2"])
    assert config.method.strength == 2.0
    again = tmp_path / "config.toml"
    again.write_text(config.to_toml())
    assert Config.load(again).values() == config.values()
    with pytest.raises(FedTailorError, match="does not exist"):
        Config.load(words=["method=nowhere.py"])


def test_a_written_config_names_its_files_in_full(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,y\n")
    monkeypatch.chdir(tmp_path)
    config = Config.load(words=["data=table", "data.path=mine.csv", "partition=iid", "clients=2"])
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(Config.load(tmp_path / "config.toml").federation().clients) == 2


def test_a_partition_seed_keeps_the_partition_while_seeds_change():
    words = ["data=digits", "partition_seed=3", "clients=5", "data.fraction=0.5"]
    first, second = (Config.load(words=[*words, f"seed={s}"]).federation() for s in (0, 1))
    other = Config.load(words=["data=digits", "clients=5", "data.fraction=0.5", "seed=3"]).federation()
    assert np.array_equal(first.label_counts, second.label_counts)
    assert np.array_equal(first.label_counts, other.label_counts)


def test_the_address_of_ray_may_be_dotted():
    assert Config.load(words=["engine=ray", "ray.address=auto"]).settings.ray_address == "auto"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("method.name=5", "method = 5 is not a name"),
        ("data.name=[1]", r"data = \[1\] is not a name"),
        ("net.name={a=1}", "net = .* is not a name"),
        ("device=meta", "device = 'meta' is not available"),
        ("device=5", "device = 5 is not allowed"),
        ("device=nonsense", "device = 'nonsense' is not available"),
        ("lr=nan", "lr = nan is not allowed"),
        ("lr=inf", "lr = inf is not allowed"),
        ("rounds=1e30", "rounds = 1e.30 is not allowed: expected int ≥ 1 and ≤ 1e.06"),
        ("threads=100000", "threads = 100000 is not allowed"),
        ("workers=1e9", "workers = 1000000000.0 is not allowed"),
        ("clients=1e9", "clients = .* is not allowed"),
        ("net.hidden=100000", "net.hidden = 100000 is not allowed"),
        ("net.hidden=\ud800", "net.hidden = .* is not allowed"),
        ("rounds=" + "9" * 5000, "rounds = .* is not allowed"),
        ("rounds=" + "[" * 5000, "rounds = .* is not allowed"),
        ("lr=0.1\nrounds=7", "lr = .* is not allowed"),
    ],
)
def test_absurd_words_are_refused_in_words(word, says):
    with pytest.raises(FedTailorError, match=says):
        Config.load(None, ["net=cnn", word])
    with pytest.raises(FedTailorError, match=says):
        Config.load(None, [word])


@pytest.mark.parametrize(
    "content",
    [
        b"method = 5",
        b"[[method]]\nname = 'fedavg'",
        b"[method.name]\nx = 1",
        b"\xff\xfe",
        b"a = " + b"[" * 9000,
        b"seed = " + b"9" * 9000,
    ],
)
def test_absurd_files_are_refused_in_words(tmp_path, content):
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(FedTailorError):
        Config.load(tmp_path / "c.toml")


def test_a_path_that_cannot_be_one_is_refused_in_words(tmp_path):
    for path in (tmp_path, tmp_path / ("a" * 300), "/dev/zero"):
        with pytest.raises(FedTailorError, match=r"does not exist|is not a file"):
            Config.load(Path(path))
    for path in ("a" * 300, "~nobody-of-that-name/x"):
        with pytest.raises(FedTailorError, match="does not exist"):
            Config.load(None, ["data=table", f"data.path={path}"]).federation()
    assert Config.load(None, ["data.root=~nobody-of-that-name"]).to_toml()


def test_a_delete_character_survives_the_config_file(tmp_path):
    config = Config.load(None, ["data=table", "data.label=a\x7f\x1bb"])
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert Config.load(tmp_path / "c.toml").data.label == "a\x7f\x1bb"
