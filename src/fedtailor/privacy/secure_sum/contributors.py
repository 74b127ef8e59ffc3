"""The clients of one worker in secure sums: what each holds between the messages of a round."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.noise_shares import NoiseShares
from fedtailor.privacy.secure_sum.client import Contribution
from fedtailor.privacy.secure_sum.entries import Entries
from fedtailor.privacy.secure_sum.primitives import derive_key
from fedtailor.privacy.secure_sum.ring import FixedPoint
from fedtailor.privacy.secure_sum.terms import Refused, Terms, needed
from fedtailor.randomness import derive

HEAVIEST = "heaviest"  # in an offer: the largest weight that a client may have in this sum
MOST = 2**40  # no honest server declares a larger one


@dataclass
class Contributors:
    """Keeps a contribution for each client that takes part in the sum of a round; a new round replaces it.

    With a `seed`, secrets are drawn from named streams, so that a simulation repeats itself to the bit and protects nobody; without
    one, from the operating system.
    """

    entries: Entries
    run: str
    threshold: float
    seed: int | None = None
    noise: NoiseShares | None = None  # that clients add, where the entries have differential privacy
    held: dict[int, Contribution] = field(default_factory=dict)
    heaviest: dict[int, int] = field(default_factory=dict)  # client -> as the server declared it

    def serve(self, step: str, client: int, round: int, payload: Payload) -> Payload:
        """Do a client's part of the message that is called so: advertise, share or unmask."""
        match step:
            case "advertise":
                return self.advertise(client, round)
            case "share":
                return self.share(client, round, payload)
            case "unmask":
                return self.unmask(client, round, payload)
        raise ValueError(f"a secure sum has no message '{step}'")

    def advertise(self, client: int, round: int) -> Payload:
        """Begin a sum with fresh secrets, which replace those of any other."""
        self.held[client] = Contribution(Terms(self.run, round, self.threshold), client, self._root(client, round))
        return self.held[client].advertise()

    def share(self, client: int, round: int, offer: Payload) -> Payload:
        self.heaviest[client] = _read_heaviest(offer)
        return self._of(client, round).share(offer)

    def form(self, heaviest: int, participants: int) -> FixedPoint:
        """Return how numbers become integers in the sum of so many participants. Noise takes room as well."""
        if self.noise is None:
            return FixedPoint(self.entries.bound, heaviest, participants)
        return FixedPoint(self.noise.bound(needed(self.threshold, participants)), heaviest, participants)

    def masked(self, client: int, round: int, inbox: Payload, up: Payload, sent: Payload, samples: int) -> Payload:
        """Return a reply with its protected entries masked. Raise OutOfRange if one does not fit, before anything is masked.

        `sent` is what the client was sent: with differential privacy, what is summed are changes of it.
        """
        contribution = self._of(client, round)
        heaviest, names = self.heaviest[client], self.entries.names
        values = up
        if self.noise is not None:
            values = self.noise.noised(client, round, up, sent, names, contribution.needed)
        form = self.form(heaviest, len(contribution.keys))
        vector = self.entries.encode(values, self.entries.weight(samples, heaviest), form)
        rest = {name: tensor for name, tensor in up.items() if name not in names}
        return rest | self.entries.as_payload(contribution.mask(inbox, vector), up)

    def unmask(self, client: int, round: int, request: Payload) -> Payload:
        shares = self._of(client, round).unmask(request)
        if self.noise is not None:  # raises before anything is revealed
            self.noise.draws.reveal(client, request["survivors"].tolist())
        return shares

    def plain(self, client: int) -> dict[str, Any]:
        """Return what a client holds, for its own disk."""
        return {**self.held[client].plain(), HEAVIEST: self.heaviest.get(client, 0)}

    def restore(self, client: int, plain: Mapping[str, Any]) -> None:
        self.held[client] = Contribution.read(plain, client, self.threshold)
        self.heaviest[client] = int(plain[HEAVIEST])

    def _of(self, client: int, round: int) -> Contribution:
        held = self.held.get(client)
        if held is None or held.terms.round != round:
            raise Refused(f"no secure sum of round {round} has begun here: a sum begins with fresh keys")
        return held

    def _root(self, client: int, round: int) -> bytes:
        if self.seed is None:
            return os.urandom(32)
        stream = derive(self.seed, "secure-sum", round, client)
        return derive_key(stream.to_bytes(8, "big"), ("simulated root",))


def _read_heaviest(payload: Payload) -> int:
    tensor = payload.get(HEAVIEST)
    if tensor is None or tensor.dtype != torch.int64 or tensor.shape != (1,) or not 1 <= tensor.item() <= MOST:
        raise Refused("the server does not declare the largest weight of a client")
    return int(tensor.item())
