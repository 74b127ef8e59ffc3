"""The entries of a client's reply that are summed: how they become one vector, and means again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.ring import FixedPoint, OutOfRange, Ring, to_tensor

PREFIX = "secure-sum."  # of what travels beside a method's entries
WEIGHT = f"{PREFIX}weight"  # the client's weight, masked as well

Shapes = dict[str, torch.Size]


@dataclass(frozen=True)
class Entries:
    """Which entries are summed, and by which weights.

    A weighted mean is Σ nᵢwᵢ / Σ nᵢ, and both sums are made in secret: a vector holds the entries one after the other, each times the
    client's weight, and the weight itself at its end.
    """

    names: tuple[str, ...]
    by: Literal["samples", "clients"]
    bound: float

    def weight(self, samples: int, heaviest: int) -> int:
        """Return a client's weight: its samples, at most `heaviest`, or 1."""
        return min(samples, heaviest) if self.by == "samples" else 1

    def encode(self, payload: Payload, weight: int, form: FixedPoint) -> Ring:
        """Return the vector of a reply; raise OutOfRange if an entry does not fit."""
        parts = []
        for name in self.names:
            try:
                parts.append(form.encode(payload[name].reshape(-1), weight))
            except OutOfRange as problem:
                raise OutOfRange(f"'{name}': {problem}") from None
        return np.concatenate([*parts, np.array([weight], dtype=np.uint64)])

    def as_payload(self, vector: Ring, like: Payload) -> Payload:
        """Cut a vector into int64 tensors of the entries' shapes, which travel in place of the entries."""
        sizes = [like[name].numel() for name in self.names]
        *parts, weight = to_tensor(vector).split([*sizes, 1])
        return {name: p.view(like[name].shape) for name, p in zip(self.names, parts, strict=True)} | {WEIGHT: weight}

    def shapes(self, payloads: Sequence[Payload], known: Mapping[str, Tensor]) -> Shapes:
        """Return the shape of each entry: that of the server's own, else that of most clients."""
        found: Shapes = {}
        for name in self.names:
            votes = Counter(payload[name].shape for payload in payloads if name in payload)
            if name in known:
                found[name] = known[name].shape
            elif votes:
                found[name] = votes.most_common(1)[0][0]
        return found

    def vector(self, payload: Payload, shapes: Shapes) -> Tensor:
        """Return what `as_payload` cut; an empty vector if the payload is not of these shapes."""
        expected = {**shapes, WEIGHT: torch.Size([1])}
        parts = [payload.get(name) for name in expected]
        sound = [p for p, s in zip(parts, expected.values(), strict=True) if p is not None and p.shape == s]
        if len(sound) < len(parts) or any(part.dtype != torch.int64 for part in sound):
            return torch.empty(0, dtype=torch.int64)
        return torch.cat([part.reshape(-1) for part in sound])

    def means(self, total: Ring, shapes: Shapes, form: FixedPoint, by: float | None = None) -> dict[str, Tensor] | None:
        """Return the weighted mean of each entry, in float64; None if the sum of the weights is impossible.

        With `by`, sums are divided by that whatever the weights are.
        """
        weight = int(total[-1])
        if not 0 < weight <= form.heaviest * form.clients:
            return None
        parts = form.decode(total[:-1], by or weight).split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}


def taken_inbox(payload: Payload) -> tuple[Payload, Payload]:
    """Split what a client is sent into what its method reads and what its secure sum reads."""
    own = {name: tensor for name, tensor in payload.items() if not name.startswith(PREFIX)}
    return own, {name.removeprefix(PREFIX): payload[name] for name in payload if name.startswith(PREFIX)}
