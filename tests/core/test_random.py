"""Random numbers that are a function of a key."""

from __future__ import annotations

import torch

from caveat.core import key, seeded


def numbers(seed: int) -> list[float]:
    return torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist()


def test_torch_takes_the_lower_32_bits_of_a_seed() -> None:
    """As `key` says of its 63: if another version takes more, its docstring has to change."""
    seed = key(0, "train", 3, "silo-1")
    assert seed >= 2**32
    assert numbers(seed) == numbers(seed % 2**32) != numbers(seed % 2**32 + 1)


def test_a_key_decides_all_numbers_and_leaves_the_global_ones_alone() -> None:
    before = torch.get_rng_state()
    drawn = []
    for parts in ((0, "a"), (0, "a"), (0, "b")):
        with seeded(*parts):
            drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)
