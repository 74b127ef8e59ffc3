"""A client's side of one secure sum: it advertises keys, shares its secrets, masks its vector, and helps to remove the masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.primitives import (
    KEY,
    TAG,
    agree,
    derive_key,
    field_elements,
    public_key,
    seal,
    stream,
    unseal,
)
from fedtailor.privacy.secure_sum.ring import Ring
from fedtailor.privacy.secure_sum.shamir import PRIME, SHARE, split
from fedtailor.privacy.secure_sum.terms import FEWEST, Refused, Terms, point, read_clients, read_rows, rows

SEALED = 2 * SHARE + TAG  # bytes: a share of the mask key and one of the seed
NO_SHARE = b"\xff" * SHARE  # in place of a share that did not arrive; no element of the field


class Stage(StrEnum):
    """What a client has done last. Each step is possible once, in this order."""

    BEGUN = "begun"
    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKED = "masked"
    DONE = "done"


@dataclass
class Contribution:
    """What one client holds during one sum. Everything secret in it is derived from `root`, which is fresh for each sum."""

    terms: Terms
    client: int
    root: bytes
    stage: Stage = Stage.BEGUN
    keys: dict[int, bytes] = field(default_factory=dict)  # participant -> its public keys: channel, mask
    sealed: dict[int, bytes] = field(default_factory=dict)  # dealer -> what it committed to and sealed for this client

    def advertise(self) -> Payload:
        """Send two public keys: one for sealed shares, one for the masks."""
        self._check_turn(Stage.ADVERTISED)
        self.stage = Stage.ADVERTISED
        return {"keys": rows([self._public])}

    def share(self, offer: Payload) -> Payload:
        """Take in the participants' public keys; send each a sealed share of the mask key and of the seed of the own mask."""
        self._check_turn(Stage.SHARED)
        participants = read_clients(offer, "participants")
        keys = dict(zip(participants, read_rows(offer, "keys", len(participants), 2 * KEY), strict=True))
        if len(keys) < FEWEST or keys.get(self.client) != self._public or len(set(keys.values())) < len(keys):
            raise Refused("the participants' keys are not those of two or more different clients, this one among them")
        self.stage, self.keys = Stage.SHARED, keys
        shares = self._shares
        peers = [v for v in participants if v != self.client]
        sealed = [seal(self._channel(v, self.client, v), shares["key"][v] + shares["seed"][v]) for v in peers]
        pairs = [self.terms.committed_pair(self.client, v, shares["key"][v], shares["seed"][v]) for v in participants]
        seed = self.terms.committed_seed(self.client, self._seed)
        return {"sealed": rows(sealed), "digests": rows(pairs), "seed": rows([seed])}

    def mask(self, inbox: Payload, vector: Ring) -> Ring:
        """Take in the shares that were sealed for this client; return its vector, masked."""
        self._check_turn(Stage.MASKED)
        dealers = read_clients(inbox, "dealers", among=list(self.keys))
        peers = [v for v in dealers if v != self.client]
        sealed = read_rows(inbox, "sealed", len(peers), SEALED)
        digests = read_rows(inbox, "digests", len(peers), 2 * KEY)
        if len(peers) == len(dealers) or len(dealers) < self.needed:
            raise Refused(
                f"{len(dealers)} of {len(self.keys)} participants have shared their keys, and {self.needed} are needed"
            )
        self.stage = Stage.MASKED
        self.sealed = {v: digest + box for v, digest, box in zip(peers, digests, sealed, strict=True)}
        masked = vector + stream(self._seed, len(vector))
        for v in peers:
            mask = stream(pair_seed(self.terms, self._mask_key, self.keys[v], self.client, v), len(vector))
            masked = np.add(masked, mask, out=masked) if self.client < v else np.subtract(masked, mask, out=masked)
        return masked

    def unmask(self, request: Payload) -> Payload:
        """Reveal one share for each participant: of the seed if its vector is in the sum, else of its mask key. Never both.

        Afterwards nothing is left that a second request could reveal.
        """
        self._check_turn(Stage.DONE)
        dealers = sorted([*self.sealed, self.client])
        survivors = set(read_clients(request, "survivors", among=dealers))
        if len(survivors) < self.needed:
            raise Refused(f"the sum is over {len(survivors)} clients, and {self.needed} are needed to unmask it")
        shares = rows([self._held_share(v, v in survivors) for v in dealers])
        self.stage, self.root, self.keys, self.sealed = Stage.DONE, b"", {}, {}
        for secret in ("_mask_key", "_channel_key", "_seed", "_public", "_shares"):
            self.__dict__.pop(secret, None)
        return {"shares": shares}

    def plain(self) -> dict[str, Any]:
        """Return all of it for the client's own disk, fit for JSON."""
        secrets = {name: {str(i): value.hex() for i, value in getattr(self, name).items()} for name in HELD}
        return {
            "run": self.terms.run,
            "round": self.terms.round,
            "root": self.root.hex(),
            "stage": self.stage,
            **secrets,
        }

    @classmethod
    def read(cls, plain: Mapping[str, Any], client: int, threshold: float) -> Self:
        held = {name: {int(i): bytes.fromhex(text) for i, text in plain[name].items()} for name in HELD}
        terms = Terms(plain["run"], plain["round"], threshold)
        return cls(terms, client, bytes.fromhex(plain["root"]), Stage(plain["stage"]), **held)

    def _check_turn(self, stage: Stage) -> None:
        order = list(Stage)
        if order.index(stage) != order.index(self.stage) + 1:
            raise Refused(
                f"it has {self.stage} in the secure sum of round {self.terms.round}; '{stage}' can follow once, in its turn"
            )

    def _held_share(self, dealer: int, survived: bool) -> bytes:
        if dealer == self.client:
            return self._shares["seed" if survived else "key"][dealer]
        committed, sealed = self.sealed[dealer][: 2 * KEY], self.sealed[dealer][2 * KEY :]
        both = unseal(self._channel(dealer, dealer, self.client), sealed)
        if both is None or self.terms.committed_pair(dealer, self.client, both[:SHARE], both[SHARE:]) != committed:
            return NO_SHARE
        return both[SHARE:] if survived else both[:SHARE]

    @property
    def needed(self) -> int:
        """How many clients can unmask the sum."""
        return self.terms.needed(len(self.keys))

    def _secret(self, name: str) -> bytes:
        return derive_key(self.root, self.terms.purpose(name, self.client))

    @cached_property
    def _channel_key(self) -> bytes:
        return self._secret("channel key")

    @cached_property
    def _mask_key(self) -> bytes:
        return self._secret("mask key")

    @cached_property
    def _seed(self) -> bytes:
        return self._secret("seed")

    @cached_property
    def _public(self) -> bytes:
        return public_key(self._channel_key) + public_key(self._mask_key)

    @cached_property
    def _shares(self) -> dict[str, dict[int, bytes]]:
        return {"key": self._split(self._mask_key, "key"), "seed": self._split(self._seed, "seed")}

    def _split(self, secret: bytes, kind: str) -> dict[int, bytes]:
        coefficients = field_elements(self._secret(f"{kind} polynomial"), self.needed - 1, PRIME)
        shares = split(secret, map(point, self.keys), coefficients)
        return {v: shares[point(v)] for v in self.keys}

    def _channel(self, peer: int, dealer: int, holder: int) -> bytes:
        """Return the key with which a dealer seals what a holder may read."""
        try:
            return agree(self._channel_key, self.keys[peer][:KEY], self.terms.purpose("channel", dealer, holder))
        except ValueError:
            raise Refused(f"the key of client {peer} is no usable point of the curve") from None


HELD = ("keys", "sealed")


def pair_seed(terms: Terms, mask_key: bytes, public: bytes, one: int, other: int) -> bytes:
    """Return the seed of the mask that two clients share: one adds it, the other subtracts it."""
    try:
        return agree(mask_key, public[KEY:], terms.purpose("pair", min(one, other), max(one, other)))
    except ValueError:
        raise Refused(f"the key of client {other} is no usable point of the curve") from None
