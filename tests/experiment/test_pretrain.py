"""Pretraining: it learns, says how its file was made, and runs start from the file and say so."""

from __future__ import annotations

import hashlib
import json

import pytest
import safetensors
import torch
from safetensors.torch import load_file

from fedtailor import Config, FedTailorError
from fedtailor.experiment.pretrain import plan, pretrain
from fedtailor.experiment.run import start

WORDS = ["net=resnet18", "data=digits", "data.fraction=0.05", "epochs=2", "batch=16", "seed=3"]


def test_the_body_is_trained_written_and_started_from(tmp_path):
    path, seen = tmp_path / "below" / "body.safetensors", []
    pretrain(plan(WORDS), path, lambda epoch, loss, accuracy: seen.append((epoch, loss, accuracy)))
    assert [epoch for epoch, _, _ in seen] == [1, 2]
    assert seen[1][1] < seen[0][1]
    with safetensors.safe_open(path, "pt") as file:
        names, note = set(file.keys()), file.metadata()
    assert "layer1.0.conv1.weight" in names
    assert not any(name.startswith("fc") for name in names)
    assert note["net"] == "name=resnet18 stem=imagenet norm=batch"
    assert note["data"] == "name=digits fraction=0.05"
    assert "epochs=2 batch=16 lr=0.1" in note["training"]
    assert note["accuracy"] == f"{seen[1][2]:.4f}"

    words = ["net=resnet18-adapters", f"net.weights={path}", "data.fraction=0.05", "clients=2"]
    others = ["partition=iid", "method=fedavg", "rounds=1", "epochs=0", "save_models=false"]
    simulation = start(Config.load(words=[*words, *others]), tmp_path / "run")
    backbone = simulation.personal(0).state_dict()
    assert torch.equal(backbone["layer3.1.conv2.weight"], load_file(path)["layer3.1.conv2.weight"])
    told = json.loads((tmp_path / "run" / "versions.json").read_text())["weights"]
    assert told["file"] == "body.safetensors"
    assert told["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert told["data"] == note["data"]


def test_mistakes_are_told_before_training(tmp_path):
    with pytest.raises(FedTailorError, match="no key 'methd'"):
        plan(["methd=fedrep"])
    with pytest.raises(FedTailorError, match="Did you mean 'epochs'"):
        plan(["epoch=3"])
    out = tmp_path / "w.safetensors"
    with pytest.raises(FedTailorError, match="'cnn' cannot start from a file"):
        pretrain(plan(["net=cnn"]), out)
    with pytest.raises(FedTailorError, match="frozen backbone"):
        pretrain(plan(["net=resnet18-adapters", "data.fraction=0.05"]), out)
    with pytest.raises(FedTailorError, match="must name a new file"):
        pretrain(plan(WORDS), tmp_path / "w.pth")
    out.touch()
    with pytest.raises(FedTailorError, match="must name a new file"):
        pretrain(plan(WORDS), out)
