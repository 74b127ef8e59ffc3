"""The ledger: bytes of every payload that travelled, by round, client, direction and name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedtailor.learning.mixing import Payload

Direction = Literal["up", "down"]

HEADER = "round,client,direction,name,bytes"  # of ledger.csv


@dataclass(frozen=True)
class Entry:
    round: int
    client: int
    direction: Direction
    name: str
    bytes: int


class Ledger:
    """Totals by client, direction and name since the start, and the entries of the last step."""

    def __init__(self) -> None:
        self.last: list[Entry] = []
        self.totals: Counter[tuple[int, Direction, str]] = Counter()

    def open_round(self) -> None:
        self.last = []

    def enter(self, round: int, direction: Direction, payloads: Mapping[int, Payload]) -> None:
        for client, payload in payloads.items():
            for name, tensor in payload.items():
                self.last.append(Entry(round, client, direction, name, tensor.nbytes))
                self.totals[client, direction, name] += tensor.nbytes

    def bytes(self, direction: Direction) -> int:
        """Return the bytes of the last step in one direction."""
        return sum(e.bytes for e in self.last if e.direction == direction)
