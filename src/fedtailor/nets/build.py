"""Build a net, cut into body and head and checked against the data, from a name or any module."""

from __future__ import annotations

import copy
from contextlib import suppress

import torch
from torch import Tensor, nn

from fedtailor.data.task import OUTPUT, Task
from fedtailor.errors import FedTailorError
from fedtailor.limits import check_bytes
from fedtailor.nets.architecture import Architecture, nets
from fedtailor.nets.fast import with_plain_layers
from fedtailor.nets.net import Net, check_cut
from fedtailor.randomness import seeded


def build_net(
    architecture: Architecture | str | nn.Module,
    task: Task,
    *,
    head: str | None = None,
    seed: int = 0,
    carry_buffers: bool = False,
    fast: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Net:
    """Build a net cut at `head` (default: its last linear layer); the same seed gives the same initial weights.

    A module is copied and keeps its weights. Without `fast`, all layers are PyTorch's own.
    """
    if not isinstance(architecture, nn.Module):
        architecture = _architecture(architecture)
        _check_size(architecture, task, dtype)
    with seeded(seed, "net"):
        module = _module(architecture, task).to(device=device, dtype=dtype)
        module = module if fast else with_plain_layers(module)
        example = _example(task, dtype, device)
        _check_logits(module, example, task)
        check_cut(module, head, example)
    return Net(module, head, carry_buffers=carry_buffers)


def _architecture(asked: Architecture | str) -> Architecture:
    if isinstance(asked, str):
        return nets.build(asked, {})
    if isinstance(asked, type):
        raise FedTailorError(f"net is the class {asked.__name__}: give an instance of it, {asked.__name__}(…).")
    if not isinstance(asked, Architecture):
        raise FedTailorError(f"net must be a net's name or a torch.nn.Module, but is of type {type(asked).__name__}.")
    return asked


def _check_size(architecture: Architecture, task: Task, dtype: torch.dtype) -> None:
    """Refuse a net of absurd size before memory is allocated; on the device meta, tensors have shapes but no values."""
    if getattr(architecture, "weights", ""):
        return  # it is as large as its file, which has its own limit
    size = 0
    # A build that reads values fails on meta, and is not sized.
    with suppress(RuntimeError), seeded(0, "size"), torch.device("meta"):
        size = sum(p.numel() for p in architecture.build(task).parameters())
    check_bytes(size * dtype.itemsize, f"The net {architecture}")


def _module(architecture: Architecture | nn.Module, task: Task) -> nn.Module:
    return copy.deepcopy(architecture) if isinstance(architecture, nn.Module) else architecture.build(task)


def _example(task: Task, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if task.vocabulary > 0:
        return torch.randint(task.vocabulary, (2, *task.shape), device=device)
    return torch.randn(2, *task.shape, dtype=dtype, device=device)


def _check_logits(module: nn.Module, example: Tensor, task: Task) -> None:
    # On the module itself, not a copy, so that lazy layers are initialized.
    module.eval()
    try:
        with torch.no_grad():
            logits = module(example)
    except Exception as error:
        raise FedTailorError(
            f"{type(module).__name__} cannot read the data: a batch of shape {tuple(example.shape)} made it fail with: {error}"
        ) from error
    module.train()
    expected = (len(example), task.outputs)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"type {type(logits).__name__}"
        raise FedTailorError(
            f"{type(module).__name__} must return {OUTPUT[task.kind]}, shape {expected} for a batch of {len(example)}, but its output "
            f"has {found}."
        )
