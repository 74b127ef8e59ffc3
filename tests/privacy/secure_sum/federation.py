"""A secure sum with all its parties at hand, whose messages a test may lose or change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.client import Contribution
from fedtailor.privacy.secure_sum.ring import Ring, to_tensor
from fedtailor.privacy.secure_sum.server import Summation
from fedtailor.privacy.secure_sum.terms import Refused, Terms

Change = Callable[[str, int, Payload], Payload]  # (message, client, payload) -> what arrives


def unchanged(message: str, client: int, payload: Payload) -> Payload:
    return payload


class Parties:
    """Clients with random vectors, and the server; `gone` has the clients that fall silent at each message."""

    def __init__(
        self, clients: Sequence[int], length: int = 5, *, threshold: float = 0.5, run: str = "r", round: int = 1
    ):
        rng = np.random.default_rng(0)
        self.vectors = {i: rng.integers(0, 2**64, length, dtype=np.uint64) for i in clients}
        self.length = length
        terms = Terms(run, round, threshold)
        self.clients = {i: Contribution(terms, i, bytes([i + 1] * 32)) for i in clients}
        self.server = Summation(terms)
        self.seen: dict[int, torch.Tensor] = {}  # masked vectors

    def total(self, *, change: Change = unchanged, **gone: Collection[int]) -> Ring:
        def answers(message: str, asked: Collection[int], answer: Callable[[int], Payload]) -> dict[int, Payload]:
            found = {}
            for i in asked:
                if i not in gone.get(message, ()):
                    try:
                        found[i] = change(message, i, answer(i))
                    except Refused as problem:
                        self.server.refused[i] = f"refuses: {problem}"
            return found

        clients, server = self.clients, self.server
        offer = server.take_keys(answers("advertise", clients, lambda i: clients[i].advertise()))
        server.take_shares(answers("share", server.keys, lambda i: clients[i].share(offer)))
        masked = answers("mask", server.sealed, self._masked)
        self.seen = {i: up["masked"] for i, up in masked.items()}
        request = server.take_masked(self.seen, self.length)
        return server.unmask(answers("unmask", server.masked, lambda i: clients[i].unmask(request)))

    def plain(self, clients: Collection[int]) -> Ring:
        return np.sum([self.vectors[i] for i in clients], axis=0, dtype=np.uint64)

    def _masked(self, client: int) -> Payload:
        return {"masked": to_tensor(self.clients[client].mask(self.server.inbox(client), self.vectors[client]))}
