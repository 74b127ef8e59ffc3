"""The server's side of one secure sum: it relays keys and sealed shares, adds masked vectors, and learns their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.client import NO_SHARE, SEALED, pair_seed
from fedtailor.privacy.secure_sum.primitives import KEY, agree, public_key, stream
from fedtailor.privacy.secure_sum.ring import Ring, from_tensor, total
from fedtailor.privacy.secure_sum.shamir import SHARE, combine
from fedtailor.privacy.secure_sum.terms import FEWEST, Refused, SumLost, Terms, point, read_rows, rows

Message = TypeVar("Message")
Read = TypeVar("Read")

PROBE = bytes([1] * KEY)  # a private key that shows whether a public one is usable


class Summation:
    """One sum. Its functions are called in the order defined here, each with the messages that came; a client without one drops out.

    A client whose message is unusable is left out like one that sent none, and `refused` says why.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.keys: dict[int, bytes] = {}  # participant -> its public keys
        self.sealed: dict[int, dict[int, bytes]] = {}  # dealer -> holder -> shares that only the holder can read
        self.digests: dict[
            int, dict[int, bytes]
        ] = {}  # dealer -> holder -> commitments to a share of the key and of the seed
        self.seeds: dict[int, bytes] = {}  # dealer -> its commitment to the seed
        self.masked: dict[int, Ring] = {}
        self.refused: dict[int, str] = {}

    def take_keys(self, messages: Mapping[int, Payload]) -> Payload:
        """Take in what clients advertise; return what all participants are sent."""
        for i, key in self._readable(messages, self._key).items():
            if key in self.keys.values():
                self.refused[i] = "it advertises the keys of another client"
            else:
                self.keys[i] = key
        self._check(len(self.keys), FEWEST, "advertised keys")
        return {"participants": torch.tensor(list(self.keys)), "keys": rows(list(self.keys.values()))}

    def take_shares(self, messages: Mapping[int, Payload]) -> None:
        """Take in the participants' sealed shares."""
        for i, dealt in self._readable(self._of(self.keys, messages), self._dealt).items():
            self.sealed[i], self.digests[i], self.seeds[i] = dealt
        self._check(len(self.sealed), self.needed, "shared their keys")

    def inbox(self, client: int) -> Payload:
        """Return what a dealer needs to mask its vector: who takes part, and the shares sealed for it."""
        peers = [dealer for dealer in self.sealed if dealer != client]
        return {
            "dealers": torch.tensor(list(self.sealed)),
            "sealed": rows([self.sealed[dealer][client] for dealer in peers]),
            "digests": rows([self.digests[dealer][client] for dealer in peers]),
        }

    def take_masked(self, vectors: Mapping[int, Tensor], length: int) -> Payload:
        """Take in masked vectors; return what those that sent one are asked to reveal."""
        read = self._readable(self._of(self.sealed, vectors), lambda _, vector: _ring_vector(vector, length))
        self.masked = read
        self._check(len(read), self.needed, "sent a masked vector")
        return {"survivors": torch.tensor(list(read))}

    def unmask(self, messages: Mapping[int, Payload]) -> Ring:
        """Take in the revealed shares; return the sum of the vectors, in the ring."""
        revealed = self._readable(self._of(self.masked, messages), self._revealed)
        self._check(len(revealed), self.needed, "helped to unmask")
        length = len(next(iter(self.masked.values())))
        result = total(list(self.masked.values()))
        for dealer in self.sealed:
            secret = self._secret(dealer, {i: shares[dealer] for i, shares in revealed.items() if dealer in shares})
            if dealer in self.masked:
                result -= stream(secret, length)
                continue
            for i in self.masked:  # its mask is in the vectors of all others
                mask = stream(pair_seed(self.terms, secret, self.keys[i], dealer, i), length)
                result = np.subtract(result, mask, out=result) if i < dealer else np.add(result, mask, out=result)
        return result

    @property
    def needed(self) -> int:
        return self.terms.needed(len(self.keys))

    def _key(self, client: int, message: Payload) -> bytes:
        (key,) = read_rows(message, "keys", 1, 2 * KEY)
        for public in (key[:KEY], key[KEY:]):
            try:
                agree(PROBE, public, ("probe",))
            except ValueError:
                raise Refused("its key is no usable point of the curve") from None
        return key

    def _dealt(self, client: int, message: Payload) -> tuple[dict[int, bytes], dict[int, bytes], bytes]:
        peers = [v for v in self.keys if v != client]
        sealed = read_rows(message, "sealed", len(peers), SEALED)
        digests = read_rows(message, "digests", len(self.keys), 2 * KEY)
        (seed,) = read_rows(message, "seed", 1, KEY)
        return dict(zip(peers, sealed, strict=True)), dict(zip(self.keys, digests, strict=True)), seed

    def _revealed(self, holder: int, message: Payload) -> dict[int, bytes]:
        """Return dealer -> the share that a holder reveals; a forged one is not what the dealer committed to."""
        shares = dict(zip(self.sealed, read_rows(message, "shares", len(self.sealed), SHARE), strict=True))
        for dealer, share in shares.items():
            kind, part = ("seed", slice(KEY, None)) if dealer in self.masked else ("key", slice(KEY))
            committed = self.digests[dealer][holder][part]
            if share != NO_SHARE and self.terms.committed(kind, dealer, holder, share) != committed:
                raise Refused(f"it reveals a share of client {dealer} that is not the one it was given")
        return {dealer: share for dealer, share in shares.items() if share != NO_SHARE}

    def _secret(self, dealer: int, shares: Mapping[int, bytes]) -> bytes:
        """Return a dealer's seed, or its mask key if it dropped out."""
        chosen = {point(i): shares[i] for i in list(shares)[: self.needed]}
        secret = combine(chosen) if len(chosen) == self.needed else None
        if secret is not None:
            if dealer in self.masked and self.terms.committed_seed(dealer, secret) == self.seeds[dealer]:
                return secret
            if dealer not in self.masked and public_key(secret) == self.keys[dealer][KEY:]:
                return secret
        raise SumLost(
            f"The secure sum of round {self.terms.round} is lost: the shares that client {dealer} dealt do not fit.",
            (dealer,),
        )

    def _readable(self, messages: Mapping[int, Message], read: Callable[[int, Message], Read]) -> dict[int, Read]:
        """Return what can be read, in the order of clients; note why the rest cannot."""
        found: dict[int, Read] = {}
        for i in sorted(messages):
            try:
                found[i] = read(i, messages[i])
            except Refused as problem:
                self.refused[i] = str(problem)
        return found

    def _of(self, known: Mapping[int, object], messages: Mapping[int, Message]) -> dict[int, Message]:
        return {i: message for i, message in messages.items() if i in known}

    def _check(self, count: int, needed: int, did: str) -> None:
        if count < needed:
            raise SumLost(
                f"The secure sum of round {self.terms.round} is lost: {count} clients {did}, and {needed} are needed"
                + (f" of {len(self.keys)}." if self.keys else ".")
            )


def _ring_vector(tensor: Tensor, length: int) -> Ring:
    if tensor.dtype != torch.int64 or tuple(tensor.shape) != (length,):
        raise Refused(
            f"its masked vector is {tensor.dtype} {tuple(tensor.shape)} where {length} ring elements are expected"
        )
    return from_tensor(tensor)
