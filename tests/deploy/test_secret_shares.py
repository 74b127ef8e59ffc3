"""A site's shares of the noise: the same for the same question, never with two sets of clients, and no more sums than ε allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedtailor import FedTailorError
from fedtailor.deploy.secret_shares import SecretShares
from fedtailor.privacy.secure_sum.terms import Refused

CHANGE = torch.arange(5.0, dtype=torch.float64)


def test_a_share_is_the_same_after_a_restart_and_another_for_anything_else(tmp_path: Path) -> None:
    first = SecretShares(tmp_path).normal(1, 1, CHANGE, 0.3, 4)
    assert torch.equal(SecretShares(tmp_path).normal(1, 1, CHANGE, 0.3, 4), first)
    for round, change, deviation in ((2, CHANGE, 0.3), (1, CHANGE + 1e-9, 0.3), (1, CHANGE, 0.4)):
        assert not torch.equal(SecretShares(tmp_path).normal(1, round, change, deviation, 4), first)
    (tmp_path / "other").mkdir()
    assert not torch.equal(SecretShares(tmp_path / "other").normal(1, 1, CHANGE, 0.3, 4), first)


def test_no_more_sums_have_noise_of_their_own_than_epsilon_allows(tmp_path: Path) -> None:
    own = SecretShares(tmp_path)
    for round in (1, 2, 2, 1):
        own.normal(1, round, CHANGE, 0.3, 2)
    with pytest.raises(Refused, match="added its changes to 2 sums, which is all"):
        own.normal(1, 3, CHANGE, 0.3, 2)
    with pytest.raises(Refused, match="which is all"):
        own.normal(1, 2, CHANGE + 1, 0.3, 2)


def test_a_share_is_revealed_with_one_set_of_clients_only(tmp_path: Path) -> None:
    own = SecretShares(tmp_path)
    own.normal(1, 1, CHANGE, 0.3, 9)
    own.reveal(1, [0, 1, 2])
    own.normal(1, 2, CHANGE, 0.3, 9)
    own.reveal(1, [1, 2])
    own.normal(1, 1, CHANGE, 0.3, 9)  # the server repeats the first round
    with pytest.raises(Refused, match="with other clients before"):
        own.reveal(1, [1, 2])
    own.reveal(1, [0, 1, 2])


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise_shares.json").write_text("[1]")
    with pytest.raises(FedTailorError, match="damaged"):
        SecretShares(tmp_path).normal(1, 1, CHANGE, 0.3, 9)
