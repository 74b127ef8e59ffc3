"""Read-only payloads: the tensors that a method receives at a client are shared with others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Fingerprint = tuple[int, int]  # version and checksum

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry


class ReadOnlyPayloads:
    """Detects writes into lent tensors.

    PyTorch counts the writes it knows of. A checksum finds the others, through `.data` or a NumPy view, unless values are only permuted.
    Checksums are reused for the next client of the same call.
    """

    def __init__(self) -> None:
        self._call: Hashable = None
        self._known: dict[int, tuple[Tensor, Fingerprint]] = {}

    @contextmanager
    def watched(self, call: Hashable, payload: Mapping[str, Tensor]) -> Iterator[list[str]]:
        """Yield a list that names, after the context is left, the entries that were written into."""
        known = self._known if call == self._call else {}
        before = {name: self._fingerprint(tensor, known.get(id(tensor))) for name, tensor in payload.items()}
        self._remember(call, payload, before)  # clients that are served side by side enter before the first leaves
        written: list[str] = []
        yield written
        after = {name: fingerprint(tensor) for name, tensor in payload.items()}
        written.extend(name for name in payload if before[name] != after[name])
        self._remember(call, payload, after)

    def _remember(self, call: Hashable, payload: Mapping[str, Tensor], found: Mapping[str, Fingerprint]) -> None:
        self._call, self._known = call, {id(tensor): (tensor, found[name]) for name, tensor in payload.items()}

    def _fingerprint(self, tensor: Tensor, known: tuple[Tensor, Fingerprint] | None) -> Fingerprint:
        if known is not None and known[0] is tensor and known[1][0] == version(tensor):
            return known[1]
        return fingerprint(tensor)


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Return a number that depends on the tensor's bits and its count of writes."""
    return version(tensor), int(tensor.detach().view(WHOLE[tensor.element_size()]).sum())


def version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def kept_apart(tensors: dict[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Copy those of the tensors that share memory with any of the others, so that they may be written into."""
    shared = {_memory(tensor) for other in others for tensor in other.values() if tensor.numel()}
    return {name: tensor.clone() if _memory(tensor) in shared else tensor for name, tensor in tensors.items()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
