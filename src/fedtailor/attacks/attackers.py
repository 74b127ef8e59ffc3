"""The attackers of a run: which clients they are, what they train on, and what they send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.attacks.backdoor import SUCCESS, Backdoor
from fedtailor.attacks.base import Attack
from fedtailor.data.client_data import ClientData
from fedtailor.data.federation import Federation
from fedtailor.data.task import Task
from fedtailor.learning import Payload
from fedtailor.learning.scoring import Score
from fedtailor.randomness import numpy_stream, torch_stream


@dataclass(frozen=True)
class Attackers:
    """An attack and the clients that carry it out, the same ones in every round."""

    attack: Attack
    clients: frozenset[int]
    seed: int

    @classmethod
    def drawn(cls, attack: Attack, candidates: Sequence[int], seed: int) -> Attackers:
        """Draw the attackers; a larger share contains the attackers of a smaller one."""
        order = numpy_stream(seed, "attackers").permutation(candidates).tolist()
        return cls(attack, frozenset(order[: round(attack.share * len(candidates))]), seed)

    def poisoned(self, federation: Federation) -> Federation:
        """Return the federation with what attackers train on and, for a backdoor, what the others are tested with."""
        self.attack.check_data(federation.task, federation.clients[0].train.x)
        clients = [self._client(federation.task, i, data) for i, data in enumerate(federation.clients)]
        return replace(federation, clients=clients)

    def _client(self, task: Task, number: int, data: ClientData) -> ClientData:
        if number not in self.clients:
            return replace(data, triggered=self.attack.triggered(data.test))
        stream = torch_stream(self.seed, "poison", number)
        return replace(data, train=self.attack.poisoned(data.train, task, stream))

    def reply(self, round: int, client: int, sent: Payload, up: Payload) -> Payload:
        """Return what a client sends in a round in place of `up`, if it is an attacker."""
        if client not in self.clients:
            return up
        stream = torch_stream(self.seed, "attack", round, client)
        return {name: self._entry(sent.get(name), tensor, stream) for name, tensor in up.items()}

    def summary(self, scores: Mapping[int, Score]) -> dict[str, float]:
        """Return what a round's record says of the attack: how many attackers the scores leave out, and how often a backdoor works."""
        counted: dict[str, float] = {"attackers": len(self.clients)}
        if isinstance(self.attack, Backdoor):
            known = [value for score in scores.values() if not math.isnan(value := score.value(SUCCESS))]
            counted[SUCCESS] = sum(known) / len(known) if known else math.nan
        return counted

    def _entry(self, sent: Tensor | None, up: Tensor, generator: torch.Generator) -> Tensor:
        """Return an attacked entry; one that was not sent down is a change from zero, and whole numbers are left as they are."""
        if not up.is_floating_point():
            return up
        if sent is None or sent.shape != up.shape:
            return self.attack.change(up, generator)
        return sent + self.attack.change(up - sent, generator)
