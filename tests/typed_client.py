"""A user's program as a type checker sees it: `mypy --strict` passes it, and it runs. See test_release.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

import fedtailor as ft
from fedtailor.learning import Client, Payload, Reply, Server


@ft.methods.register("typed-average")
@dataclass(frozen=True)
class TypedAverage(ft.Method):
    """Average the whole model, trained with a step size of its own (an example)."""

    down = ("model",)
    up = ("model",)

    lr: float = ft.option(0.05, "step size", at_least=0.0)

    def start(self, server: Server, hellos: Mapping[int, Payload]) -> None:
        server.state["model"] = server.net().all.vector

    def fit(self, client: Client, payload: Payload) -> Payload:
        net = client.net(model=payload["model"])
        client.train(net.all, lr=self.lr)
        return {"model": net.all.vector}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> None:
        server.average(replies, "model")

    def personal(self, client: Client, payload: Payload) -> nn.Module:
        return client.net(model=payload["model"])


class Rounds(ft.Callback):
    """Count the rounds."""

    seen = 0

    def on_round(self, simulation: ft.Simulation, record: dict[str, object]) -> None:
        self.seen += 1


def main(folder: Path) -> tuple[int, str]:
    x, y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
    federation = ft.Federation.from_arrays(x, y, clients=3, partition="iid")
    rounds = Rounds()
    run = ft.run(federation, TypedAverage(lr=0.1), rounds=2, seed=1, callbacks=[rounds], out=folder / "a")
    labels: np.ndarray = run.personal(0).predict(x[:4])
    study = ft.compare(federation, ["local", TypedAverage()], rounds=1, callbacks=[], out=folder / "c")
    assert len(labels) == 4
    assert len(study.table()) == 2
    return rounds.seen, ft.__version__
