"""Which replies of a round may become part of the server's state.

A reply has to be finite, and none of its entries may be far larger than those of the others. This stops a client whose training
diverged, whose data is broken, or who scales its update up; it does not stop one that lies within these bounds (an update times −10, say).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedtailor.learning import Payload, Reply

LARGEST = 1e15  # treated as infinite: the squares of larger vectors, summed over clients, overflow float32
ENOUGH = 3  # replies needed to tell which one is an outlier


@dataclass(frozen=True)
class Fault:
    """Why a reply is left out, and by which factor it exceeds the others where that is known."""

    reason: str
    extent: float = math.nan

    def __str__(self) -> str:
        return self.reason if math.isnan(self.extent) else f"{self.reason} ({self.extent:.2g} times)"


def faults(replies: Sequence[Reply], sent: Mapping[int, Payload], factor: float, few: int) -> dict[int, Fault]:
    """Return client -> why its reply must be left out.

    An entry that was sent down under the same name may move `factor` times as far as the median of the round. Two kinds of honest clients
    go further, and stay in: one with many more samples takes as many more steps (up to `factor` times as many count), and where most have
    nothing left to learn, whoever has still moves, but less far than what was sent is long.

    An entry that was not sent has only its size to be judged by, which varies more: it may be `factor`² times as large as the median. One
    of at most `few` numbers, one per class or client (counts, gains, a Fisher trace), only has to be finite: honest ones differ by any
    factor. So it is with a factor of 0, with fewer than three replies, and where the median is zero.
    """
    found: dict[int, Fault] = {}
    typical = median([reply.samples for reply in replies] or [0])
    more = {r.client: min(max(r.samples / typical, 1.0), factor) if typical else 1.0 for r in replies}
    for name in dict.fromkeys(name for reply in replies for name in reply.payload):
        moved: dict[int, float] = {}
        sizes: dict[int, float] = {}
        origins: dict[int, Tensor] = {}
        for reply in replies:
            tensor = reply.payload.get(name)
            if tensor is None or not tensor.is_floating_point():
                continue
            origin = _comparable(sent.get(reply.client, {}).get(name), tensor)
            length = _length(tensor, origin)
            if not length <= LARGEST:
                found.setdefault(reply.client, _beyond_numbers(name, tensor))
            elif origin is not None:
                moved[reply.client], origins[reply.client] = length, origin
            elif tensor.numel() > few:
                sizes[reply.client] = length
        for i, extent in _outliers(moved, factor).items():
            if extent > factor * more[i] and moved[i] > _length(origins[i], None):
                found.setdefault(
                    i, Fault(f"its '{name}' moved more than {factor:g} times as far as the median", extent)
                )
        for i, extent in _outliers(sizes, factor**2).items():
            found.setdefault(i, Fault(f"its '{name}' is more than {factor**2:g} times as large as the median", extent))
    return found


def finite(tensor: Tensor) -> bool:
    """Return whether all entries are finite; the sum shows it, unless the sum itself overflows."""
    return not tensor.is_floating_point() or math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def _outliers(lengths: Mapping[int, float], factor: float) -> dict[int, float]:
    """Return client -> its length as a multiple of the median, of those beyond the factor."""
    middle = median(lengths.values()) if factor and len(lengths) >= ENOUGH else 0.0
    return {i: length / middle for i, length in lengths.items() if middle and length > factor * middle}


def _comparable(origin: Tensor | None, tensor: Tensor) -> Tensor | None:
    alike = origin is not None and origin.is_floating_point() and origin.shape == tensor.shape
    return origin if alike else None


def _length(tensor: Tensor, origin: Tensor | None) -> float:
    """Return ‖tensor − origin‖; NaN or infinite only if an entry is, or if it is certainly too long."""
    for dtype in (tensor.dtype, torch.float64):  # in float32 the squares of 1e20 overflow
        difference = tensor.to(dtype) if origin is None else tensor.to(dtype) - origin.to(dtype)
        length = difference.norm().item()
        if math.isfinite(length):
            break
    return length


def _beyond_numbers(name: str, tensor: Tensor) -> Fault:
    return Fault(f"its '{name}' is {'larger than any model' if finite(tensor) else 'not finite'}")
