from __future__ import annotations

import builtins
import importlib
import sys
from typing import Any

import numpy as np
import pytest

from fedtailor.errors import FedTailorError
from fedtailor.privacy.secure_sum.primitives import agree, derive_key, digest, public_key, seal, stream, unseal


def test_x25519_agrees_as_in_rfc_7748() -> None:
    """The RFC's section 6.1; HKDF on top is the same function at both ends."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645" + "df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    purpose = ("run", 1)
    assert (
        agree(alice, public_key(bob), purpose) == agree(bob, public_key(alice), purpose) == derive_key(shared, purpose)
    )


def test_keys_of_different_purposes_differ() -> None:
    purposes = [("r", 1, "a"), ("r", 2, "a"), ("s", 1, "a"), ("r", 1, "b"), ("r", 11), ("r1", 1)]
    assert len({derive_key(b"x" * 32, purpose) for purpose in purposes}) == len(purposes)
    assert len({digest(b"x" * 32, purpose) for purpose in purposes}) == len(purposes)


@pytest.mark.parametrize("point", [bytes(32), bytes([1]) + bytes(31), b"short"])
def test_unusable_points_are_refused(point: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        agree(b"\x01" * 32, point, ("p",))


def test_sealed_messages_open_with_their_key_only() -> None:
    sealed = seal(b"k" * 32, b"a share")
    assert unseal(b"k" * 32, sealed) == b"a share"
    assert unseal(b"j" * 32, sealed) is None
    assert unseal(b"k" * 32, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None


def test_streams_are_chacha20_of_rfc_8439() -> None:
    """Key and nonce zero, block 0: the first test vector of its appendix A.1."""
    first = np.array([0x903DF1A0ADE0B876, 0x28BD8653E56A5D40], dtype=np.uint64)
    assert (stream(bytes(32), 2) == first).all()
    assert (stream(bytes(32), 100)[:2] == first).all()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "fedtailor.privacy.secure_sum.primitives"
    imported = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return imported(name, *args)

    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedTailorError, match=r"A secure sum needs cryptography.*fedtailor\[privacy\]"):
        importlib.import_module(module)
