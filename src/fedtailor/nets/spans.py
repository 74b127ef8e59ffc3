"""Spans of a flat tensor as one vector: the memory of a part of a net."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class Spans:
    """The spans of a flat tensor that some views of it occupy, in order; adjacent views form one span.

    The vector of a single span is the memory itself, so that nothing is copied; that of several spans is a copy.
    """

    def __init__(self, flat: Tensor, views: Iterable[Tensor]) -> None:
        spans: list[tuple[int, int]] = []
        for view in views:
            start = int(view.storage_offset())
            end = start + view.numel()
            joins = bool(spans) and spans[-1][1] == start
            spans.append((spans.pop()[0] if joins else start, end))
        self.pieces = [flat[start:end] for start, end in spans] or [flat[:0]]
        self.sizes = [len(piece) for piece in self.pieces]

    @property
    def whole(self) -> bool:
        """Whether there is only one span, so that `joined` is the memory itself."""
        return len(self.pieces) == 1

    @property
    def joined(self) -> Tensor:
        """One vector: the memory itself, or a copy of several spans."""
        return self.pieces[0] if self.whole else torch.cat(self.pieces)

    def copy(self) -> Tensor:
        return self.joined.clone() if self.whole else self.joined

    def load(self, vector: Tensor) -> None:
        for piece, value in self.beside(vector):
            piece.copy_(value)

    def beside(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each span with its slice of a vector."""
        cut = (vector,) if self.whole else vector.split(self.sizes)
        return zip(self.pieces, cut, strict=True)

    def places(self, others: Spans) -> list[slice] | None:
        """Return where the spans of others are in the vector of these; None if not all are in it."""
        found = [self._place(piece) for piece in others.pieces]
        return None if None in found else [place for place in found if place is not None]

    def _place(self, other: Tensor) -> slice | None:
        if not len(other):
            return slice(0, 0)
        before = 0
        for piece in self.pieces:
            start = other.storage_offset() - piece.storage_offset()
            if 0 <= start <= len(piece) - len(other):
                return slice(before + start, before + start + len(other))
            before += len(piece)
        return None

    def __len__(self) -> int:
        return sum(self.sizes)
