from __future__ import annotations

from itertools import combinations

import numpy as np

from fedtailor.privacy.secure_sum.shamir import PRIME, combine, split

SECRET = bytes(range(32))


def test_the_modulus_is_prime() -> None:
    """Miller-Rabin with the first 40 primes as bases."""
    bases = [p for p in range(2, 174) if all(p % q for q in range(2, p))]
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, PRIME)
        chain = [pow(x, 2**k, PRIME) for k in range(twos)]
        assert x == 1 or PRIME - 1 in chain, f"{base} shows that it is composite"


def test_shares_are_values_of_the_polynomial() -> None:
    shares = split(SECRET, [1, 7], [5, 3])
    secret = int.from_bytes(SECRET, "big")
    assert {x: int.from_bytes(y, "big") for x, y in shares.items()} == {1: secret + 8, 7: secret + 5 * 7 + 3 * 49}


def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not() -> None:
    shares = split(SECRET, range(1, 6), [PRIME - 12345, 2**200 + 1])
    for some in combinations(shares, 3):
        assert combine({x: shares[x] for x in some}) == SECRET
    for some in combinations(shares, 2):
        assert combine({x: shares[x] for x in some}) != SECRET


def test_largest_secret_and_impossible_shares() -> None:
    assert combine(split(b"\xff" * 32, [1, 2], [1])) == b"\xff" * 32
    assert combine({1: (2**256).to_bytes(33, "big")}) is None


def test_a_share_alone_is_as_likely_with_any_secret() -> None:
    """For each secret and value there is one coefficient: shown on the last byte of many splits."""
    rng = np.random.default_rng(0)
    counts = np.zeros(256)
    for _ in range(4096):
        coefficient = int.from_bytes(rng.bytes(64), "big") % PRIME
        counts[split(SECRET, [3], [coefficient])[3][-1]] += 1
    assert ((counts - 16) ** 2 / 16).sum() < 340  # χ² with 255 degrees of freedom: p < 0.0003 above
