"""Layers and steps that compute what PyTorch's do, faster on a CPU; `docs/performance.md` says what each gains and how it was measured.

`fast = off` of the protocol leaves all of them out: nets are built of PyTorch's own layers, and every gradient is autograd's.
"""

from __future__ import annotations

from torch import nn

from fedtailor.nets.fast.wide_linear import WideLinear
from fedtailor.nets.fast.winograd import Conv2d

__all__ = ["Conv2d", "WideLinear", "with_plain_layers"]


def with_plain_layers(module: nn.Module) -> nn.Module:
    """`module` itself, its fast layers replaced by PyTorch's with the same parameters."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Conv2d | WideLinear):
                setattr(parent, name, layer.plain())
    return module
