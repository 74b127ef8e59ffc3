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

from fedtailor.engines.work import Work
from fedtailor.errors import FedTailorError
from fedtailor.files import replace_bytes
from fedtailor.learning.descent import TROUBLES
from fedtailor.learning.mixing import Payload, State
from fedtailor.learning.scoring import Score

MAX_COUNT = 1e12  # no honest client reports a larger count

Send = Callable[[int], Payload]  # client number -> its payload, made when it is needed


@dataclass(frozen=True)
class Outcome:
    """The result of one client's work: its payload for the server, and numbers about it."""

    up: Payload = field(default_factory=dict)
    samples: int = 0
    loss: float = float("nan")
    score: Score | None = None
    logged: dict[str, float] = field(default_factory=dict)


class WorkerLost(FedTailorError):
    """A worker died, and with it the states of its clients since the last checkpoint."""


class Engine(ABC):
    """Carries payloads to clients and returns their outcomes, in the order of client numbers.

    A subclass implements `call`; everything else is built on it. Where clients can fail to reply, they are left out of the outcomes.
    """

    trusts_clients: ClassVar[bool] = True  # whether every client is honest
    holds_states: ClassVar[bool] = True  # whether private states, and so personal models, can be read here
    run: str = "simulation"  # names the run in the keys of a secure sum

    def __init__(self) -> None:
        self.known: set[int] = set()  # clients that have a private state
        self.rejected = 0  # unusable replies of this round
        self.troubles: dict[int, Counter[str]] = {}  # client -> what went wrong in its training in this round

    @abstractmethod
    def call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        """Have the workers do one kind of work (see `Worker.serve`) for these clients."""

    def hello(self, clients: Iterable[int]) -> dict[int, Payload]:
        """Collect what each client sends the server once, before the first round."""
        return {i: outcome.up for i, outcome in self.call(Work.HELLO, 0, clients, nothing).items()}

    def fit(self, round: int, clients: Iterable[int], send: Send, *, evaluate: bool) -> dict[int, Outcome]:
        """Train locally; with `evaluate`, also score the freshly trained personal models."""
        return self._call(Work.FIT_AND_SCORE if evaluate else Work.FIT, round, clients, send)

    def evaluate(self, round: int, clients: Iterable[int], send: Send, *, sync: bool) -> dict[int, Score]:
        """Score personal models on the clients' test samples; with `sync`, clients take in the payload first."""
        outcomes = self._call(Work.SYNC_AND_SCORE if sync else Work.SCORE, round, clients, send)
        return {i: outcome.score or Score() for i, outcome in outcomes.items()}

    def sync(self, round: int, clients: Iterable[int], send: Send) -> None:
        """Have clients take in the payload, without evaluation."""
        self._call(Work.SYNC, round, clients, send)

    def finish(self, step: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        """Run one closing step after the last round."""
        return self._call(Work.FINISH, step, clients, send)

    def state(self, client: int) -> State:
        """Return a client's private state, which is its initial one before its first work. Needs `holds_states`."""
        return self.call(Work.GET_STATE, 0, [client], nothing)[client].up

    def states(self) -> dict[int, State]:
        """Return the private states of all clients that have one. Needs `holds_states`."""
        return {i: outcome.up for i, outcome in self.call(Work.GET_STATE, 0, self.known, nothing).items()}

    def restore(self, states: Mapping[int, State]) -> None:
        """Replace all private states, by those of a checkpoint. Needs `holds_states`."""
        self.call(Work.DROP_STATE, 0, self.known, nothing)
        self.known = set(states)
        self.call(Work.SET_STATE, 0, states, lambda i: dict(states[i]))

    def name(self, client: int) -> str:
        """Name a client for the log."""
        return f"client {client}"

    def reject(self, client: int, reason: str = "") -> None:
        """Count an unusable reply, and log the reason if one is given."""
        self.rejected += 1

    def take_counts(self) -> dict[str, float]:
        """Return what the engine counted in this round, for its record, and start over."""
        rejected, self.rejected = self.rejected, 0
        return {"rejected": rejected} if rejected else {}

    def close(self) -> None:
        """Release what the engine started."""

    def _call(self, work: Work, round: int, clients: Iterable[int], send: Send) -> dict[int, Outcome]:
        clients = list(clients)
        if work.changes_state:
            self.known.update(clients)
        outcomes = self.call(work, round, clients, send)
        for i, outcome in outcomes.items():
            counts = {name: outcome.logged.get(name, 0) for name in TROUBLES}
            trouble = {name: int(count) for name, count in counts.items() if 1 <= count < MAX_COUNT}
            if trouble:
                self.troubles.setdefault(i, Counter()).update(trouble)
        return outcomes


def save_module(module: nn.Module, path: Path) -> None:
    """Write a model under its own parameter names, whole or not at all."""
    replace_bytes(path, save({name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}))


def nothing(client: int) -> Payload:
    return {}
