"""What an engine does for a simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from safetensors.torch import save
from torch import nn

from fedtailor.errors import FedTailorError
from fedtailor.files import replace_bytes, writing
from fedtailor.learning.descent import TROUBLES
from fedtailor.learning.mixing import Payload, State
from fedtailor.learning.scoring import Score

MANY = 1e12  # more than anyone can count: such a number is made up

Send = Callable[[int], Payload]  # client number -> the payload for it, made when it is needed


@dataclass(frozen=True)
class Outcome:
    """What came of one client's work: what it sends up, and numbers about it."""

    up: Payload = field(default_factory=dict)
    samples: int = 0
    loss: float = float("nan")
    score: Score | None = None
    logged: dict[str, float] = field(default_factory=dict)


class WorkerLost(FedTailorError):
    """A worker died, and with it the states of its clients since the last checkpoint."""


class Engine(ABC):
    """Carries payloads to clients and brings back what they answer, always in the order of client numbers.

    An engine is one function, `call`; the rest is said in its words. A client that did not answer, where clients can fail to, is left out.
    """

    doubts: ClassVar[bool] = False  # whether clients may send what no honest client would

    def __init__(self) -> None:
        self.met: set[int] = set()  # clients that have a private state
        self.rejected = 0  # replies of this round that were of no use
        self.troubles: dict[int, Counter[str]] = {}  # client -> what went wrong in its training in this round

    @abstractmethod
    def call(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        """Have the workers do one kind of work (see `Worker.serve`) for these clients."""

    @abstractmethod
    def personal(self, round: int, client: int, payload: Payload) -> nn.Module:
        """A client's personal model, the one that `evaluate` scores in this round, as an independent plain module."""

    @abstractmethod
    def state(self, client: int) -> State:
        """A client's private state; one that was never met has its initial state."""

    def hello(self, clients: Iterable[int]) -> dict[int, Payload]:
        """What each client tells the server once."""
        return {i: outcome.up for i, outcome in self.call("hello", 0, clients, nothing).items()}

    def fit(self, round: int, clients: Iterable[int], send: Send, *, evaluate: bool) -> dict[int, Outcome]:
        """Local training; with `evaluate`, the freshly trained personal models are scored as well."""
        return self._meeting("fit+score" if evaluate else "fit", round, clients, send)

    def evaluate(self, round: int, clients: Iterable[int], send: Send, *, sync: bool) -> dict[int, Score]:
        """Scores of personal models on the clients' test samples; with `sync`, clients take in the payload first."""
        ask = self._meeting if sync else self._call
        outcomes = ask("sync+score" if sync else "score", round, clients, send)
        return {i: outcome.score or Score() for i, outcome in outcomes.items()}

    def sync(self, round: int, clients: Iterable[int], send: Send) -> None:
        """Clients take in the payload, and nothing is evaluated."""
        self._meeting("sync", round, clients, send)

    def finish(self, step: int, clients: Iterable[int], send: Send) -> None:
        """One closing step after the last round."""
        self._meeting("finish", step, clients, send)

    def states(self) -> dict[int, State]:
        """The private states of all clients met so far."""
        return {i: outcome.up for i, outcome in self.call("state", 0, self.met, nothing).items()}

    def restore(self, states: Mapping[int, State]) -> None:
        """Put private states back, as a checkpoint kept them."""
        self.call("forget", 0, self.met, nothing)
        self.met = set(states)
        self.call("remember", 0, states, lambda i: dict(states[i]))

    def save_models(self, round: int, clients: Iterable[int], send: Send, folder: Path) -> None:
        """Save each client's personal model, with the module's own parameter names."""
        with writing(folder):
            folder.mkdir(exist_ok=True)
        for i in clients:
            save_module(self.personal(round, i, send(i)), folder / f"client-{i:05d}.safetensors")

    def name(self, client: int) -> str:
        """What a client is called in the log."""
        return f"client {client}"

    def reject(self, client: int, reason: str = "") -> None:
        """Count a reply that turned out to be of no use, and log the reason if there is one to log."""
        self.rejected += 1

    def noted(self) -> dict[str, float]:
        """What the engine has to say about the round just done, for its record."""
        rejected, self.rejected = self.rejected, 0
        return {"rejected": rejected} if rejected else {}

    def close(self) -> None:
        """Let go of whatever the engine started."""

    def _meeting(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        clients = list(clients)
        self.met.update(clients)
        return self._call(work, round, clients, send)

    def _call(self, work: str, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        outcomes = self.call(work, round, clients, send)
        for i, outcome in outcomes.items():
            trouble = {name: int(outcome.logged[name]) for name in TROUBLES if 1 <= outcome.logged.get(name, 0) < MANY}
            if trouble:
                self.troubles.setdefault(i, Counter()).update(trouble)
        return outcomes


def save_module(module: nn.Module, path: Path) -> None:
    """Write a model with its own parameter names, whole or not at all."""
    replace_bytes(path, save({name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}))


def nothing(client: int) -> Payload:
    return {}
