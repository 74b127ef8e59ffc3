"""Read-only payloads: the tensors that a method receives at a client are shared with others."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry


class Lent(NamedTuple):
    """A tensor as it was when it was lent. PyTorch counts the writes it knows of; a copy of the bits shows the others, as by NumPy."""

    tensor: Tensor
    version: int
    bits: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Lent:
        return cls(tensor, version(tensor), _bits(tensor).clone())

    @property
    def same_version(self) -> bool:
        return self.version == version(self.tensor)

    @property
    def written(self) -> bool:
        return not self.same_version or not torch.equal(_bits(self.tensor), self.bits)


class ReadOnlyPayloads:
    """Lends payloads so that writes into them are found. Copies are reused for the next client of the same call."""

    def __init__(self) -> None:
        self._call: Hashable = None
        self._known: dict[int, Lent] = {}

    def lend(self, call: Hashable, payload: Mapping[str, Tensor]) -> dict[str, Lent]:
        """What is lent of a payload, by name."""
        known = self._known if call == self._call else {}
        lent = {name: self._lent(tensor, known.get(id(tensor))) for name, tensor in payload.items()}
        self._call, self._known = call, {id(entry.tensor): entry for entry in lent.values()}
        return lent

    def _lent(self, tensor: Tensor, known: Lent | None) -> Lent:
        return known if known is not None and known.tensor is tensor and known.same_version else Lent.of(tensor)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().view(WHOLE[tensor.element_size()])


def version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def kept_apart(tensors: dict[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Copy those of the tensors that share memory with any of the others, so that they may be written into."""
    shared = {_memory(tensor) for other in others for tensor in other.values() if tensor.numel()}
    return {name: tensor.clone() if _memory(tensor) in shared else tensor for name, tensor in tensors.items()}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
