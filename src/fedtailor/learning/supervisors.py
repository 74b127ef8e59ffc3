"""Supervisors of different architectures: each client draws a net by name, and keeps it for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor.data.task import Task
from fedtailor.nets.fitting import kind
from fedtailor.randomness import numpy_stream


@dataclass(frozen=True)
class Supervisors:
    """Names of nets, separated by commas; which one a client draws depends on the seed alone.

    `same` is the run's net, and `auto` is lenet-small for images and the run's net for other samples.

    >>> Supervisors("cnn, vit", seed=2).groups(clients=4)
    {'cnn': [1, 3], 'vit': [0, 2]}
    """

    text: str
    seed: int

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.text.split(",")]

    def index(self, client: int) -> int:
        """Draw the position of a client's net among the names."""
        return int(numpy_stream(self.seed, "supervisor", client).integers(len(self.names)))

    def name(self, client: int) -> str:
        return self.names[self.index(client)]

    def architecture(self, client: int, task: Task) -> str | None:
        """Return the name of a client's net; None is the run's net."""
        name = self.name(client)
        if name == "auto":
            name = "lenet-small" if kind(task) == "images" else "same"
        return None if name == "same" else name

    def groups(self, clients: int) -> dict[str, list[int]]:
        """Return the clients that draw each name."""
        drawn = [self.name(client) for client in range(clients)]
        return {name: [client for client, own in enumerate(drawn) if own == name] for name in self.names}
