"""Whole SGD steps as one compiled function each: forward pass, loss, backward pass and update.

Worth it for small dense nets, where a step is mostly the calls around its arithmetic; convolutions take the time that they take.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.learning.protocol import Protocol
from fedtailor.nets.net import Net, Part

log = logging.getLogger("fedtailor")

PAYS = 200_000  # steps of a run from which on some seconds of compiling in each worker are won back

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # weights, x, y, lr -> loss; the weights are changed in place


class CompiledSteps:
    """Plain cross-entropy steps by net, part, kind and shape of input, each compiled when it is first taken."""

    def __init__(self) -> None:
        self._steps: dict[Any, Step | None] = {}

    def take(self, part: Part, x: Tensor, y: Tensor, lr: float, *, features: bool) -> Tensor | None:
        """One step on a part, and its loss; None if it cannot be compiled. A loss that is not finite changes nothing."""
        key = (id(part), features, x.shape, x.dtype)
        rate = torch.tensor(lr, dtype=part.weights.dtype, device=part.weights.device)
        with torch.no_grad():
            if key in self._steps:
                step = self._steps[key]
                return None if step is None else step(part.weights, x, y, rate)
            return self._first(key, _whole_step(part, features), part.weights, x, y, rate)

    def _first(self, key: Any, step: Step, *arguments: Tensor) -> Tensor | None:
        import torch._inductor.config as inductor  # takes a second, so not before it is needed

        inductor.compile_threads = 1
        compiled: Step = torch.compile(step, dynamic=False)
        try:
            loss = compiled(*arguments)
        except Exception as error:  # whatever a compiler may stumble over, the step itself can still be taken
            log.warning("this net's steps cannot be compiled (%s); going on without", type(error).__name__)
            self._steps[key] = None
            return None
        finally:
            torch.set_flush_denormal(False)  # loading code built for speed sets it for everything in this thread
        self._steps[key] = compiled
        return loss


def compiles(protocol: Protocol, net: Net, steps: float) -> bool:
    """Whether a run of so many steps compiles them: said in the protocol or, by `auto`, where it was seen to pay."""
    if protocol.compile == "off" or not net.repeatable:
        return False
    dense = not any(isinstance(m, nn.modules.conv._ConvNd) for m in net.modules())
    if protocol.compile == "auto" and (steps < PAYS or not dense or protocol.device != "cpu"):
        return False
    if protocol.device == "cpu" and not has_compiler():
        if protocol.compile == "on":
            log.warning("compile=on, but there is no C++ compiler here (g++ or clang++); steps are taken as they are")
        return False
    return True


def has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


def _whole_step(part: Part, features: bool) -> Step:
    net: nn.Module = part.net.classifier if features else part.net
    mine = {id(p) for p in part.parameters}
    names = [name for name, p in net.named_parameters() if id(p) in mine]
    shapes = [p.shape for p in part.parameters]
    sizes = [p.numel() for p in part.parameters]

    def step(weights: Tensor, x: Tensor, y: Tensor, lr: Tensor) -> Tensor:
        before = [piece.view(shape) for piece, shape in zip(weights.split(sizes), shapes, strict=True)]

        def loss_of(values: list[Tensor]) -> Tensor:
            logits = torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))
            return F.cross_entropy(logits, y)

        gradients, loss = torch.func.grad_and_value(loss_of)(before)
        after = torch.cat([(w - lr * g).reshape(-1) for w, g in zip(before, gradients, strict=True)])
        weights.copy_(torch.where(torch.isfinite(loss), after, weights))
        return loss

    return step
