"""Which calibration inputs a subgroup's promise is tested on: pools by numbers alone."""

from __future__ import annotations

import pytest
import torch

from caveat.uncertainty import mondrian


@pytest.mark.parametrize(
    ("counts", "pools"),
    [
        ([100, 200], [0, 1]),  # enough: each by itself
        ([5, 200], [0, 0]),  # two: the small one has the promise of all together
        ([200, 5, 300], [0, 0, 2]),  # with the next larger one, not with the largest
        ([20, 30, 40, 300], [0, 0, 0, 3]),
        ([300, 0, 80], [0, 1, 1]),  # also without any inputs
        ([40, 40, 40], [0, 0, 0]),  # a rest joins the pool before it
        ([10, 10], [0, 0]),  # too few together
        ([100], [0]),
        ([], []),
    ],
)
def test_a_small_subgroup_is_pooled_with_the_next_larger_one(counts: list[int], pools: list[int]) -> None:
    assert mondrian.pools(torch.tensor(counts, dtype=torch.float64), 77).tolist() == pools


def test_every_pool_has_enough_inputs_and_no_subgroup_is_pooled_without_need() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        counts = torch.randint(0, 120, (int(torch.randint(1, 8, (), generator=generator)),), generator=generator)
        found = mondrian.pools(counts, 50)
        together = {int(pool): int(counts[found == pool].sum()) for pool in found}
        assert sum(together.values()) == int(counts.sum())
        assert all(found[pool] == pool for pool in together)
        if int(counts.sum()) >= 50:
            assert min(together.values()) >= 50
        if bool((counts >= 50).all()):
            assert len(together) == len(counts)


def test_numbers_of_a_pool_are_in_the_row_of_its_first_subgroup() -> None:
    pool = torch.tensor([0, 1, 0])
    assert mondrian.pooled(torch.tensor([100.0, 1.0, 20.0, 3.0]), pool).tolist() == [100, 4, 20, 0]
    subgroup = torch.tensor([2, -1, 1, 0])
    row = mondrian.rows(subgroup, pool)
    assert row is not None
    assert row.tolist() == [1, 0, 2, 1]
    assert mondrian.by_row(torch.tensor([100.0, 4.0, 20.0, 0.0]), row).tolist() == [4, 100, 20, 4]
    assert mondrian.rows(None, pool) is None
    assert float(mondrian.by_row(torch.tensor([100.0, 4.0]), None)) == 100
    assert mondrian.sizes(subgroup, 4).tolist() == [1, 1, 1, 0]
    assert mondrian.members(pool, ("a", "b", "c")) == {0: ["a", "c"], 1: ["b"]}
