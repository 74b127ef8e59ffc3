"""Values by client, looked up by the client's number or name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedtailor.learning import Payload

V = TypeVar("V")


class ByClient(dict[int, V]):
    """A dict by client number whose entries can be looked up by name as well: `scores[3]`, `scores["north"]`."""

    def __init__(self, entries: Mapping[int, V], number: Callable[[int | str], int]) -> None:
        """`number` is `Federation.number`."""
        super().__init__(entries)
        self.number = number

    def __getitem__(self, client: int | str) -> V:
        return super().__getitem__(self.number(client) if isinstance(client, str) else client)


@dataclass
class Traffic:
    """The payloads of one round, by client: what went down, what came up."""

    down: ByClient[Payload]
    up: ByClient[Payload]

    def __repr__(self) -> str:
        return f"Traffic(down: {_summary(self.down)}; up: {_summary(self.up)})"


def _summary(payloads: Mapping[int, Payload]) -> str:
    names = dict.fromkeys(name for payload in payloads.values() for name in payload)
    size = sum(entry.nbytes for payload in payloads.values() for entry in payload.values())
    return f"{', '.join(names) or 'nothing'}, {len(payloads):,} clients, {size:,} bytes"
