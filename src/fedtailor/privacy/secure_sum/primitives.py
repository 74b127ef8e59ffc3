"""What a secure sum takes from the package `cryptography`: X25519, HKDF, ChaCha20, ChaCha20-Poly1305 and SHA-256."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from fedtailor.extras import extra
from fedtailor.privacy.secure_sum.ring import Ring

with extra("privacy", "A secure sum"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

DOMAIN = "fedtailor secure-sum 1"  # separates these keys from any others made of the same secrets
KEY = 32  # bytes of a key, public or private, of a seed, and of a digest
TAG = 16  # bytes that sealing adds
ONCE = bytes(12)  # nonce: every key seals one message only

Purpose = tuple[str | int, ...]


def derive_key(secret: bytes, purpose: Purpose) -> bytes:
    """Return the key of a purpose, by HKDF-SHA256."""
    return HKDF(SHA256(), KEY, salt=None, info=_named(purpose)).derive(secret)


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: Purpose) -> bytes:
    """Return the key that two parties share for a purpose; a ValueError says that the public key is no usable point."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return derive_key(shared, purpose)


def seal(key: bytes, message: bytes) -> bytes:
    """Encrypt and authenticate the one message of a key."""
    return ChaCha20Poly1305(key).encrypt(ONCE, message, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the message; None if it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, sealed, None)
    except InvalidTag:
        return None


def stream(seed: bytes, length: int) -> Ring:
    """Return so many pseudo-random ring elements: ChaCha20's key stream."""
    return np.frombuffer(_key_stream(seed, 8 * length), dtype="<u8")


def field_elements(seed: bytes, count: int, prime: int) -> list[int]:
    """Return so many pseudo-random elements of a field of about 2^256: 512 bits each, so that the remainder's bias is negligible."""
    data = _key_stream(seed, 64 * count)
    return [int.from_bytes(data[k : k + 64], "big") % prime for k in range(0, len(data), 64)]


def digest(message: bytes, purpose: Purpose) -> bytes:
    """Return a commitment to a message that nobody can guess."""
    name = _named(purpose)
    return hashlib.sha256(len(name).to_bytes(8, "big") + name + message).digest()


def _key_stream(seed: bytes, length: int) -> bytes:
    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(length))


def _named(purpose: Purpose) -> bytes:
    return json.dumps([DOMAIN, *purpose]).encode()
