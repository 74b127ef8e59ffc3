"""Layers and steps that are faster on a CPU than PyTorch's; `docs/performance.md` has the gain of each and how it was measured.

With `fast = off` none is used: nets consist of PyTorch's own layers, and autograd computes every gradient.
"""

from __future__ import annotations

from torch import nn

from fedtailor.nets.fast.wide_linear import WideLinear
from fedtailor.nets.fast.winograd import Conv2d

__all__ = ["Conv2d", "WideLinear", "with_plain_layers"]


def with_plain_layers(module: nn.Module) -> nn.Module:
    """Replace the fast layers by PyTorch's with the same parameters, and return `module` itself."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Conv2d | WideLinear):
                setattr(parent, name, layer.plain())
    return module
