"""Shamir's secret sharing over a prime field (Shamir, How to Share a Secret, 1979).

Any `threshold` shares reveal the secret, fewer reveal nothing. The field has more elements than 32-byte secrets, so
each secret is one element. The weights of a reconstruction depend only on who gives shares, so they are computed once
for the secrets of all silos.
"""

import secrets
from collections.abc import Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
BYTES = 33
"""Length of a share."""


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares of a 32-byte secret at the points 1 to `count`."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, x).to_bytes(BYTES) for x in range(1, count + 1)]


def _value(coefficients: Sequence[int], x: int) -> int:
    found = 0
    for each in reversed(coefficients):
        found = (found * x + each) % PRIME
    return found


def weights(points: Sequence[int]) -> list[int]:
    """Return the Lagrange weights of the shares at these points for the value at 0."""
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(shares: Sequence[bytes], by: Sequence[int]) -> bytes | None:
    """Return the secret from shares and their `weights`; None if they are not shares of a 32-byte secret."""
    found = sum(int.from_bytes(share) * weight for share, weight in zip(shares, by, strict=True)) % PRIME
    return found.to_bytes(32) if found < 2**256 else None
