"""Client and server together: sums, dropouts, what a server sees, and parties that do not keep to the protocol."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.learning.mixing import Payload
from fedtailor.privacy.secure_sum.client import Contribution, Stage, pair_seed
from fedtailor.privacy.secure_sum.primitives import derive_key, stream
from fedtailor.privacy.secure_sum.terms import Refused, SumLost, Terms, rows
from tests.privacy.secure_sum.federation import Parties


def test_the_sum_is_the_plain_sum_to_the_bit() -> None:
    parties = Parties([0, 3, 4, 9], 1000)
    assert (parties.total() == parties.plain([0, 3, 4, 9])).all()
    assert parties.server.refused == {}


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ({"advertise": [0]}, [1, 2, 3, 4, 5, 6]),
        ({"share": [1, 6]}, [0, 2, 3, 4, 5]),
        ({"mask": [0, 3, 6]}, [1, 2, 4, 5]),
        ({"unmask": [1, 2, 5]}, [0, 1, 2, 3, 4, 5, 6]),
        ({"advertise": [2], "share": [6], "mask": [0], "unmask": []}, [1, 3, 4, 5]),
    ],
)
def test_clients_may_drop_out_at_each_message(gone: dict[str, Collection[int]], left: list[int]) -> None:
    parties = Parties(range(7))
    assert (parties.total(**gone) == parties.plain(left)).all()


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ({"advertise": range(6)}, "1 clients advertised keys, and 2 are needed"),
        ({"share": range(4)}, "3 clients shared their keys, and 4 are needed of 7"),
        ({"mask": range(4)}, "3 clients sent a masked vector, and 4 are needed of 7"),
        ({"unmask": range(4)}, "3 clients helped to unmask, and 4 are needed of 7"),
    ],
)
def test_below_the_threshold_the_sum_is_lost(gone: dict[str, Collection[int]], reason: str) -> None:
    with pytest.raises(SumLost, match=f"The secure sum of round 1 is lost: {reason}"):
        Parties(range(7)).total(**gone)


def test_masked_vectors_are_uniform_whatever_they_hide() -> None:
    """χ² over the 256 values of each byte of one client's masked vector of zeros: 255 degrees of freedom, mean 255, deviation 22.6."""
    parties = Parties([0, 1, 2], 1 << 16)
    parties.vectors = {i: np.zeros_like(vector) for i, vector in parties.vectors.items()}
    assert not parties.total().any()
    seen = parties.seen[1].numpy().view(np.uint8).reshape(-1, 8)
    expected = len(seen) / 256
    for column in seen.T:
        statistic = ((np.bincount(column, minlength=256) - expected) ** 2 / expected).sum()
        assert 160 < statistic < 360


def test_masks_differ_from_round_to_round_and_from_run_to_run() -> None:
    seen = []
    for terms in ({}, {"round": 2}, {"run": "other"}):
        parties = Parties([0, 1, 2], **terms)  # type: ignore[arg-type]
        parties.total()
        seen.append(tuple(parties.seen[1].tolist()))
    assert len(set(seen)) == 3


def test_without_one_pair_of_masks_the_rest_still_hides_a_vector() -> None:
    """All but one other client collude with the server: what they know leaves a mask on the sum of the two honest vectors only."""
    parties = Parties(range(4), 4096)
    parties.total()
    terms = parties.server.terms
    known = np.array(parties.seen[0].numpy().view(np.uint64))
    known -= stream(derive_key(bytes([1] * 32), terms.purpose("seed", 0)), 4096)  # revealed by all when 0 survives
    for v in (2, 3):
        key = derive_key(bytes([v + 1] * 32), terms.purpose("mask key", v))
        known -= stream(pair_seed(terms, key, parties.server.keys[0], v, 0), 4096)
    left = (known - parties.vectors[0]).view(np.uint8)
    assert 160 < ((np.bincount(left, minlength=256) - 128) ** 2 / 128).sum() < 360


def ready_to_unmask() -> tuple[Parties, Payload]:
    parties = Parties(range(4))
    clients, server = parties.clients, parties.server
    offer = server.take_keys({i: c.advertise() for i, c in clients.items()})
    server.take_shares({i: c.share(offer) for i, c in clients.items()})
    masked = {i: parties._masked(i)["masked"] for i in clients}
    return parties, server.take_masked(masked, parties.length)


def test_a_server_that_asks_for_both_shares_of_a_client_is_refused() -> None:
    parties, request = ready_to_unmask()
    client = parties.clients[1]
    client.unmask(request)
    with pytest.raises(Refused, match="it has done in the secure sum of round 1; 'done' can follow once"):
        client.unmask({"survivors": torch.tensor([0, 1, 2])})
    assert client.plain() == {"run": "r", "round": 1, "root": "", "stage": "done", "keys": {}, "sealed": {}}
    assert not [name for name in vars(client) if name.startswith("_")]


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ([0, 1], "over 2 clients, and 3 are needed"),
        ([0, 1, 7], "not numbers of part"),
        ([1, 0, 2], "not"),
        ([0, 0, 1], "not"),
    ],
)
def test_a_client_does_not_unmask_too_few_or_unknown_clients(survivors: list[int], reason: str) -> None:
    parties, request = ready_to_unmask()
    with pytest.raises(Refused, match=reason):
        parties.clients[1].unmask({"survivors": torch.tensor(survivors)})
    parties.clients[1].unmask(request)  # a refusal costs nothing


def test_a_client_masks_once_with_a_key() -> None:
    parties, _ = ready_to_unmask()
    with pytest.raises(Refused, match=r"it has masked .* 'masked' can follow once"):
        parties._masked(1)


def test_a_client_does_not_begin_with_keys_that_are_not_its_own_or_all_alike() -> None:
    parties = Parties(range(4))
    offer = parties.server.take_keys({i: c.advertise() for i, c in parties.clients.items()})
    other, alone, alike = (dict(offer) for _ in range(3))
    other["keys"] = offer["keys"].flip(0)
    alone |= {"participants": torch.tensor([1]), "keys": offer["keys"][1:2]}
    alike["keys"] = offer["keys"][[0, 1, 1, 3]]
    for wrong in (other, alone, alike):
        with pytest.raises(Refused, match="keys are not those of two or more different clients"):
            parties.clients[1].share(wrong)


HOSTILE: list[tuple[str, str, Any, str]] = [
    ("advertise", "keys", lambda t: t[:, :63], "uint8 1×63 where 1 × 64 bytes"),
    ("advertise", "keys", lambda t: t.float(), "float32 1×64"),
    ("advertise", "keys", lambda t: torch.zeros_like(t), "no usable point of the curve"),
    ("advertise", "keys", None, "missing"),
    ("share", "sealed", lambda t: t[1:], "uint8 5×82 where 6 × 82"),
    ("share", "digests", lambda t: t[:, :8], "uint8 7×8 where 7 × 64"),
    ("share", "seed", lambda t: t.repeat(2, 1), "uint8 2×32"),
    ("mask", "masked", lambda t: t[:-1], r"torch.int64 \(4,\) where 5 ring elements"),
    ("mask", "masked", lambda t: t.double(), "torch.float64"),
    ("unmask", "shares", lambda t: t[:, :32], "uint8 7×32 where 7 × 33"),
    ("unmask", "shares", lambda t: t ^ 1, "a share of client 0 that is not the one it was given"),
]


@pytest.mark.parametrize(("message", "name", "change", "reason"), HOSTILE)
def test_a_malformed_message_costs_its_sender_only(message: str, name: str, change: Any, reason: str) -> None:
    parties = Parties(range(7))

    def hostile(sent: str, client: int, payload: Payload) -> Payload:
        if (sent, client) != (message, 2):
            return payload
        return {} if change is None else {**payload, name: change(payload[name])}

    total = parties.total(change=hostile)
    left = [0, 1, 3, 4, 5, 6] if message != "unmask" else range(7)
    assert (total == parties.plain(left)).all()
    assert list(parties.server.refused) == [2]
    assert re.search(reason, parties.server.refused[2])


def test_keys_copied_from_another_client_are_refused() -> None:
    parties = Parties(range(4))
    copied: dict[int, Payload] = {}

    def copy(message: str, client: int, payload: Payload) -> Payload:
        if message == "advertise":
            copied[client] = payload
            return copied[0] if client == 2 else payload
        return payload

    assert (parties.total(change=copy) == parties.plain([0, 1, 3])).all()
    assert parties.server.refused == {2: "it advertises the keys of another client"}


def test_shares_replayed_from_another_round_do_not_open_and_their_dealer_is_named() -> None:
    """Its vector is masked by a seed that nobody can recover: the round is lost, and the server knows whom to leave out."""
    old = Parties(range(4), round=1)
    old.total()
    new = Parties(range(4), round=2)

    def replayed(message: str, client: int, payload: Payload) -> Payload:
        if message != "share" or client != 2:
            return payload
        return {**payload, "sealed": rows(list(old.server.sealed[2].values()))}

    with pytest.raises(SumLost, match="round 2 is lost: the shares that client 2 dealt do not fit") as lost:
        new.total(change=replayed)
    assert lost.value.cheats == (2,)
    assert new.server.refused == {}


def test_a_dealer_whose_commitments_lie_is_named_and_not_those_it_dealt_to() -> None:
    parties = Parties(range(4))

    def lying(message: str, client: int, payload: Payload) -> Payload:
        return {**payload, "digests": payload["digests"] ^ 1} if (message, client) == ("share", 2) else payload

    with pytest.raises(SumLost, match="client 2 dealt"):
        parties.total(change=lying)
    assert parties.server.refused == {2: "it reveals a share of client 2 that is not the one it was given"}


def test_a_contribution_survives_on_disk_between_any_two_messages() -> None:
    parties = Parties(range(4), 64)

    def kill(message: str, client: int, payload: Payload) -> Payload:
        plain = parties.clients[client].plain()
        parties.clients[client] = Contribution.read(plain, client, parties.clients[client].terms.threshold)
        return payload

    assert (parties.total(change=kill, mask=[3]) == parties.plain([0, 1, 2])).all()
    assert parties.clients[0].stage is Stage.DONE


def test_terms_name_a_threshold_above_the_share() -> None:
    terms = Terms("r", 1)
    assert [terms.needed(n) for n in (2, 3, 4, 6, 20)] == [2, 3, 3, 5, 14]
    assert [replace(terms, threshold=0.5).needed(n) for n in (2, 3, 4, 20)] == [2, 2, 3, 11]
