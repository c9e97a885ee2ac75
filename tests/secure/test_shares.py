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


def test_fewer_shares_than_the_threshold_do_not_give_the_secret() -> None:
    """As they would if the polynomial had a lower degree."""
    secret = secrets.token_bytes(32)
    parts = shares.split(secret, 4, 5)
    for count in (1, 2, 3):
        for points in itertools.combinations(range(1, 6), count):
            found = sum(int.from_bytes(parts[x - 1]) * by for x, by in zip(points, shares.weights(points), strict=True))
            assert found % shares.PRIME != int.from_bytes(secret)


def test_shares_of_two_splits_differ() -> None:
    secret = secrets.token_bytes(32)
    assert shares.split(secret, 2, 2) != shares.split(secret, 2, 2)
