"""Tensors that many may read and nobody may write into: those of a payload, as a method at a client is given it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Print = tuple[int, int]  # version and checksum

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry


class ReadOnlyPayloads:
    """Notices what is written into lent tensors, while it happens or right after.

    PyTorch counts the writes that it knows of. A checksum finds those past it, by `.data` or a NumPy view, but for values that only
    trade places. What was computed for one client serves for the next one in the same call.
    """

    def __init__(self) -> None:
        self._call: Hashable = None
        self._known: dict[int, tuple[Tensor, Print]] = {}

    @contextmanager
    def watched(self, call: Hashable, payload: Mapping[str, Tensor]) -> Iterator[list[str]]:
        """Yield a list that names the entries written into within this context, once it is left."""
        known = self._known if call == self._call else {}
        before = {name: self._print(tensor, known.get(id(tensor))) for name, tensor in payload.items()}
        written: list[str] = []
        yield written
        after = {name: fingerprint(tensor) for name, tensor in payload.items()}
        written.extend(name for name in payload if before[name] != after[name])
        self._call, self._known = call, {id(tensor): (tensor, after[name]) for name, tensor in payload.items()}

    def _print(self, tensor: Tensor, known: tuple[Tensor, Print] | None) -> Print:
        if known is not None and known[0] is tensor and known[1][0] == version(tensor):
            return known[1]
        return fingerprint(tensor)


def fingerprint(tensor: Tensor) -> Print:
    """Changes with what is in the tensor; of equal bits it is equal."""
    return version(tensor), int(tensor.detach().view(WHOLE[tensor.element_size()]).sum())


def version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def kept_apart(tensors: dict[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The same tensors, those that share memory with any of the others copied: whoever keeps them may write into them."""
    shared = {_memory(tensor) for other in others for tensor in other.values() if tensor.numel()}
    return {name: tensor.clone() if _memory(tensor) in shared else tensor for name, tensor in tensors.items()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
