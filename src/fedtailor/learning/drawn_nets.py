"""Clients with different nets: each client draws one of several names, and keeps it for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.randomness import numpy_stream


@dataclass(frozen=True)
class DrawnNets:
    """Names of nets, separated by commas; what a client draws depends on the seed and the purpose alone.

    >>> nets = DrawnNets("cnn, vit", seed=2, purpose="supervisor")
    >>> nets.groups(clients=4)
    {'cnn': [1, 3], 'vit': [0, 2]}
    """

    text: str
    seed: int
    purpose: str

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.text.split(",")]

    def index(self, client: int) -> int:
        """Draw the position of a client's net among the names."""
        return int(numpy_stream(self.seed, self.purpose, client).integers(len(self.names)))

    def name(self, client: int) -> str:
        return self.names[self.index(client)]

    def groups(self, clients: int) -> dict[str, list[int]]:
        """Return the clients that draw each name."""
        drawn = [self.name(client) for client in range(clients)]
        return {name: [client for client, own in enumerate(drawn) if own == name] for name in self.names}
