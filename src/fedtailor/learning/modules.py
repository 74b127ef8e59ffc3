"""The modules of one worker: built once for each role, lent to whichever participant is at work."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.data.task import Task
from fedtailor.errors import FedTailorError
from fedtailor.learning.protocol import Protocol
from fedtailor.nets.architecture import Architecture
from fedtailor.nets.build import build_net
from fedtailor.nets.net import Net


class Initial(NamedTuple):
    """The run's common start of a net: the running statistics that do not travel, and the vector of all else."""

    statistics: Tensor
    weights: Tensor


class Modules:
    """One module for each role. Vectors belong to participants, modules do not."""

    def __init__(
        self,
        architecture: str | Architecture | nn.Module,
        head: str | None,
        task: Task,
        protocol: Protocol,
        carry_buffers: bool,
    ):
        self.architecture = architecture
        self.head = head
        self.task = task
        self.protocol = protocol
        self.carry_buffers = carry_buffers
        _check_weights(protocol, task)
        self.lent: dict[tuple[str, str], tuple[Net, Initial]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For a new process, which builds nets of its own: those sent to it would share this one's memory."""
        return {**self.__dict__, "lent": {}}

    def lend(self, role: str, architecture: str | Architecture | None = None) -> tuple[Net, Initial]:
        """The net of a role, and what it starts from."""
        key = (role, "" if architecture is None else repr(architecture))
        if key not in self.lent:
            net = self.build(architecture, self.protocol.seed)
            self.lent[key] = (net, Initial(net.local_buffers.clone(), net.all.vector))
        return self.lent[key]

    def build(self, architecture: str | Architecture | None, seed: int) -> Net:
        return build_net(
            self.architecture if architecture is None else architecture,
            self.task,
            head=self.head if architecture is None else None,
            seed=seed,
            carry_buffers=self.carry_buffers,
            fast=self.protocol.fast == "auto",
            dtype=self.protocol.torch_dtype,
            device=torch.device(self.protocol.device),
        )


def _check_weights(protocol: Protocol, task: Task) -> None:
    """Refuse class weights that do not fit the task."""
    asked = protocol.class_weights
    if asked != "none" and task.kind == "regression":
        raise FedTailorError("class_weights need classes, but this is a regression task. Leave them out.")
    if not isinstance(asked, str) and len(asked) != task.classes:
        raise FedTailorError(f"class_weights has {len(asked)} numbers, but the task has {task.classes} classes.")
