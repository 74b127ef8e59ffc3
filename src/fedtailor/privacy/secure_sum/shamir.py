"""Shamir's secret sharing: any `threshold` shares give the secret, fewer say nothing about it (Shamir, 1979)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above 2^256, so that any 32 bytes are an element of the field
SECRET = 32  # bytes
SHARE = 33  # bytes of a field element


def split(secret: bytes, points: Iterable[int], coefficients: Sequence[int]) -> dict[int, bytes]:
    """Return a share for each point (positive, distinct): the value there of secret + c₁x + c₂x² + … .

    The coefficients are one fewer than the threshold, and have to be uniform in the field.
    """
    polynomial = [*reversed(coefficients), int.from_bytes(secret, "big")]
    return {x: _value(polynomial, x).to_bytes(SHARE, "big") for x in points}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret from exactly `threshold` shares by point; None if they cannot be shares of 32 bytes."""
    weights = _at_zero(tuple(shares))
    secret = sum(w * int.from_bytes(y, "big") for w, y in zip(weights, shares.values(), strict=True)) % PRIME
    return secret.to_bytes(SECRET, "big") if secret < 2 ** (8 * SECRET) else None


def _value(polynomial: Sequence[int], x: int) -> int:
    """Horner's rule, highest coefficient first."""
    y = 0
    for coefficient in polynomial:
        y = (y * x + coefficient) % PRIME
    return y


@lru_cache(maxsize=64)
def _at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange's weights: the value at zero is their sum with the values at the points. The same points unmask many secrets."""
    weights = []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
