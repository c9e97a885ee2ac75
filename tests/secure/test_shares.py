"""Shamir's shares: any `threshold` of them give the secret, fewer give nothing."""

import itertools
import secrets

import pytest

from caveat.secure import shares


def probable_prime(n: int, rounds: int = 40) -> bool:
    """Miller and Rabin's test."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(rounds):
        x = pow(2 + secrets.randbelow(n - 4), odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def test_the_field_is_a_field_and_holds_every_secret() -> None:
    assert probable_prime(shares.PRIME)
    assert 2**256 < shares.PRIME < 2 ** (8 * shares.BYTES)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, secrets.token_bytes(32)], ids=["0", "largest", "random"])
def test_every_subset_of_the_threshold_gives_the_secret(secret: bytes) -> None:
    parts = shares.split(secret, 3, 5)
    for points in itertools.combinations(range(1, 6), 3):
        by = shares.weights(points)
        assert shares.combine([parts[x - 1] for x in points], by) == secret


def test_fewer_shares_are_consistent_with_every_secret() -> None:
    """For any two shares of three needed and any secret, there is a third share that gives that secret."""
    parts = shares.split(secrets.token_bytes(32), 3, 3)
    by = shares.weights([1, 2, 3])
    for wanted in (bytes(32), b"\x01" * 32):
        known = sum(int.from_bytes(part) * weight for part, weight in zip(parts[:2], by[:2], strict=True))
        third = (int.from_bytes(wanted) - known) * pow(by[2], -1, shares.PRIME) % shares.PRIME
        assert shares.combine([*parts[:2], third.to_bytes(shares.BYTES)], by) == wanted


def test_shares_of_two_splits_differ() -> None:
    secret = secrets.token_bytes(32)
    assert shares.split(secret, 2, 2) != shares.split(secret, 2, 2)
