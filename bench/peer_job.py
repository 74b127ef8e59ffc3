"""One FedAvg job for several frameworks: the same samples, initial weights and SGD steps, in a file that each reads in its own environment.

Needs only torch and numpy, since a peer's environment has no FedTailor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from bench.bare import Client, plain_net

CORES = len(os.sched_getaffinity(0))
TEST_BATCH = 512  # as in the bare loop


@dataclass(frozen=True)
class Job:
    """A FedAvg job: each client takes part in each round with `epochs` of plain SGD; the average is scored on the test samples of all."""

    clients: list[Client]
    start: Tensor
    classes: int
    rounds: int
    batch: int
    lr: float
    epochs: int

    @cached_property
    def net(self) -> nn.Module:
        """A net with the initial weights, made once per process."""
        net = plain_net(tuple(self.clients[0][0].shape[1:]), self.classes)
        vector_to_parameters(self.start.clone(), net.parameters())
        return net

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        return torch.cat([c[2] for c in self.clients]), torch.cat([c[3] for c in self.clients])

    def batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of one epoch in a new order, without an incomplete last batch."""
        size = min(self.batch, len(y))
        order = torch.randperm(len(y))[: len(y) // size * size]
        return zip(x[order].split(size), y[order].split(size), strict=True)

    def save(self, path: Path) -> None:
        """Save samples as x, y, client and test flag, with weights and settings beside them."""
        parts = [(x, y, k, test) for k, c in enumerate(self.clients) for test, x, y in ((0, *c[:2]), (1, *c[2:]))]
        sizes = [len(y) for _, y, _, _ in parts]
        arrays: dict[str, Any] = {
            "x": torch.cat([x for x, _, _, _ in parts]),
            "y": torch.cat([y for _, y, _, _ in parts]),
            "client": np.repeat([k for _, _, k, _ in parts], sizes),
            "test": np.repeat([bool(test) for _, _, _, test in parts], sizes),
            "start": self.start,
        }
        np.savez(path, **arrays, **{name: getattr(self, name) for name in SETTINGS})

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
        masks = [
            [torch.from_numpy((arrays["client"] == k) & (arrays["test"] == test)) for test in (False, True)]
            for k in range(arrays["client"].max() + 1)
        ]
        clients = [(x[train], y[train], x[test], y[test]) for train, test in masks]
        settings: dict[str, Any] = {name: arrays[name].item() for name in SETTINGS}
        return cls(clients, torch.from_numpy(arrays["start"]), **settings)


SETTINGS = ("classes", "rounds", "batch", "lr", "epochs")


@cache
def job_at(path: str) -> Job:
    """Load the job from a file, once per process however many clients it serves."""
    return Job.load(Path(path))


@dataclass(frozen=True)
class Timing:
    """A framework's result on the job: seconds of each round, and the accuracy (in percent) after the last."""

    version: str
    seconds: list[float]
    accuracy: float

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_output(cls, output: str) -> Self | None:
        """Read the timing from what a peer printed, among other lines; None if its line is missing."""
        for line in reversed(output.splitlines()):
            if line.startswith('{"version"'):
                return cls(**json.loads(line))
        return None
