"""What an engine does for a simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from fedtailor.learning.mixing import Payload, State
from fedtailor.learning.scoring import Score

Send = Callable[[int], Payload]  # client number -> the payload for it, made when it is needed


@dataclass(frozen=True)
class Outcome:
    """What came of one client's local training."""

    up: Payload
    samples: int
    loss: float
    score: Score | None = None
    logged: dict[str, float] = field(default_factory=dict)


class Engine(ABC):
    """Carries payloads to clients and brings back what they answer, always in the order of client numbers."""

    @abstractmethod
    def hello(self, clients: Iterable[int]) -> dict[int, Payload]:
        """What each client tells the server once."""

    @abstractmethod
    def fit(self, round: int, clients: Iterable[int], send: Send, *, evaluate: bool) -> dict[int, Outcome]:
        """Local training; with `evaluate`, the freshly trained personal models are scored as well."""

    @abstractmethod
    def evaluate(self, round: int, clients: Iterable[int], send: Send, *, sync: bool) -> dict[int, Score]:
        """Scores of personal models on the clients' test samples; with `sync`, clients take in the payload first."""

    @abstractmethod
    def sync(self, round: int, clients: Iterable[int], send: Send) -> None:
        """Clients take in the payload, and nothing is evaluated."""

    @abstractmethod
    def finish(self, step: int, clients: Iterable[int], send: Send) -> None:
        """One closing step after the last round."""

    @abstractmethod
    def personal(self, round: int, client: int, payload: Payload) -> nn.Module:
        """A client's personal model, the one that `evaluate` scores in this round, as an independent plain module."""

    @abstractmethod
    def states(self) -> dict[int, State]:
        """The private states of all clients met so far."""

    @abstractmethod
    def restore(self, states: Mapping[int, State]) -> None:
        """Put private states back, as a checkpoint kept them."""

    def close(self) -> None:
        """Let go of whatever the engine started."""
