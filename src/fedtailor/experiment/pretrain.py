"""Pretraining: train a net on a whole data set in one place, and save its weights for runs to start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedtailor.errors import FedTailorError, nearest
from fedtailor.experiment.config import Config, apply_override
from fedtailor.files import make_folder, replace_bytes
from fedtailor.learning.modules import Modules
from fedtailor.learning.participants import Participant
from fedtailor.learning.samples import Samples
from fedtailor.learning.scoring import score
from fedtailor.nets import Net
from fedtailor.randomness import seeded

DEFAULTS: dict[str, Any] = {"net": "resnet18", "data": "digits", "epochs": 5, "batch": 64, "lr": 0.1}
KEYS = ("net", "data", "epochs", "batch", "lr", "augment", "seed", "device", "threads")
# one client that holds everything; the official test part, or a tenth of each class, is held out
ONE_PLACE = {"name": "paired", "reserve": 0, "server_share": 0.0, "test_share": 0.1}

Watch = Callable[[int, float, float], None]  # epoch, its mean loss, accuracy on the test part


def plan(words: Iterable[str]) -> Config:
    """Return the config of key=value overrides: a federation of one client that holds all the data."""
    values = dict(DEFAULTS)
    for word in words:
        key = word.partition("=")[0].partition(".")[0]
        if key not in KEYS:
            raise FedTailorError(f"Pretraining has no key '{key}'.{nearest(key, KEYS)} Allowed: {', '.join(KEYS)}.")
        apply_override(values, word)
    return Config.from_values({**values, "clients": 1, "partition": ONE_PLACE})


def pretrain(config: Config, out: Path, watch: Watch = lambda epoch, loss, accuracy: None) -> None:
    """Train by SGD with a cosine schedule over epochs; write the body's weights to `out`, with a note of how they were made."""
    if out.suffix != ".safetensors" or out.exists():
        raise FedTailorError(f"--out must name a new file ending in .safetensors, which '{out}' is not.")
    if not hasattr(config.net, "weights"):
        raise FedTailorError(f"The net '{config.net.name}' cannot start from a file. One that can: resnet18.")
    make_folder(out.parent)  # fails before any work is done
    protocol, federation = config.settings, config.federation()
    modules = Modules(config.net, None, federation.task, protocol, carry_buffers=True)
    train, test = (
        Samples(split, federation, protocol, ready=False)
        for split in (federation.clients[0].train, federation.clients[0].test)
    )
    net, _ = modules.lend("model")
    if not all(p.requires_grad for p in net.parameters()):
        raise FedTailorError(
            f"The net '{config.net.name}' has a frozen backbone: pretrain the bare net, such as resnet18."
        )
    torch.set_num_threads(protocol.threads)
    accuracy = math.nan
    for epoch in range(protocol.epochs):
        participant = Participant(modules, train, protocol, {}, ("pretrain", epoch))
        rate = protocol.lr * (1 + math.cos(math.pi * epoch / protocol.epochs)) / 2
        with seeded(protocol.seed, *participant.keys):
            participant.train(net.all, epochs=1, lr=rate)
        accuracy = score(net, test).accuracy
        watch(epoch + 1, sum(participant.losses) / max(1, len(participant.losses)), accuracy)
    how = {"samples": str(len(train)), "mean": str(federation.mean), "std": str(federation.std)}
    replace_bytes(out, save(_body(net), {**_note(config), **how, "accuracy": f"{accuracy:.4f}"}))


def _body(net: Net) -> dict[str, torch.Tensor]:
    head = f"{net.head_name}."
    return {name: t.contiguous() for name, t in net.plain().state_dict().items() if not name.startswith(head)}


def _note(config: Config) -> dict[str, str]:
    values = config.values()
    return {
        "net": _spelled(values["net"]),
        "data": _spelled(values["data"]),
        "training": _spelled({key: values[key] for key in KEYS[2:7]}),
        "made_with": f"fedtailor {version('fedtailor')}, torch {version('torch')}",
    }


def _spelled(table: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in table.items() if value != "" and key != "root")
