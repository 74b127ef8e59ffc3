"""What client and server of a secure sum agree on beforehand, and how their messages are read: the sender may have written anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedtailor.errors import FedTailorError
from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.primitives import Purpose, digest

FEWEST = 2  # participants: the sum over one client is that client's vector


class Refused(FedTailorError):
    """A message that no well-behaved sender would write, or a request that a client does not serve."""


class SumLost(FedTailorError):
    """The sum of a round cannot be known any more; `cheats` are clients whose shares did not fit."""

    def __init__(self, reason: str, cheats: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.cheats = tuple(cheats)


def needed(threshold: float, participants: int) -> int:
    """Return t of t-of-n: the smallest number above this share of the participants."""
    return min(math.floor(threshold * participants + 1e-9) + 1, participants)


@dataclass(frozen=True)
class Terms:
    """The terms of one sum. Keys are made for its run and round, so what is replayed from another cannot be opened."""

    run: str
    round: int
    threshold: float = (
        2 / 3
    )  # of the participants, at least 1/2: more than this share can unmask the sum, and only they

    def needed(self, participants: int) -> int:
        """Return t of t-of-n.

        >>> [Terms("", 1).needed(n) for n in (2, 3, 4, 20)], Terms("", 1, 0.5).needed(3)
        ([2, 3, 3, 14], 2)
        """
        return needed(self.threshold, participants)

    def purpose(self, *words: str | int) -> Purpose:
        return (self.run, self.round, *words)

    def committed(self, kind: str, dealer: int, holder: int, share: bytes) -> bytes:
        """Return a dealer's commitment to the share of its secret that a holder has."""
        return digest(share, self.purpose(f"{kind} share", dealer, holder))

    def committed_pair(self, dealer: int, holder: int, key: bytes, seed: bytes) -> bytes:
        return self.committed("key", dealer, holder, key) + self.committed("seed", dealer, holder, seed)

    def committed_seed(self, dealer: int, seed: bytes) -> bytes:
        return digest(seed, self.purpose("seed", dealer))


def point(client: int) -> int:
    """Return where a client's share is the polynomial's value; at zero it is the secret."""
    return client + 1


def rows(parts: Sequence[bytes]) -> Tensor:
    """Return byte strings of one length as a tensor that can travel."""
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8).view(len(parts), -1)


def read_rows(payload: Payload, name: str, count: int, width: int) -> list[bytes]:
    """Return the byte strings of an entry, which has to hold so many of this length."""
    tensor = payload.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (count, width):
        raise Refused(f"its '{name}' is {_form(tensor)} where {count} × {width} bytes are expected")
    return [row.tobytes() for row in tensor.cpu().numpy()]


def read_clients(payload: Payload, name: str, among: Sequence[int] | None = None) -> list[int]:
    """Return client numbers, which have to be in order and, if given, among these."""
    tensor = payload.get(name)
    if tensor is None or tensor.dtype != torch.int64 or tensor.ndim != 1:
        raise Refused(f"its '{name}' is {_form(tensor)} where numbers of clients are expected")
    clients = tensor.tolist()
    ordered = all(a < b for a, b in pairwise(clients)) and (not clients or clients[0] >= 0)
    if not ordered or (among is not None and not set(clients) <= set(among)):
        raise Refused(f"its '{name}' are not numbers of participants in order")
    return clients


def _form(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'number'}"
