"""What is known of a sequence before a model sees it."""

from __future__ import annotations

import pytest
import torch

from caveat.nn.stage_features import NUMBERS, input_numbers, series_numbers, token_numbers


def test_length_is_what_stands_before_the_equal_ids_at_the_end() -> None:
    x = torch.tensor([[5, 6, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8], [4, 4, 4, 4, 9, 9, 3, 0]])
    length = token_numbers(x)["length"]
    # The run at the end counts with its first id, so that a sequence that is not filled up has its own length.
    torch.testing.assert_close(length[:, 0], torch.tensor([3 / 8, 1.0, 1.0]))
    torch.testing.assert_close(length[:, 1], torch.tensor([3 / 8, 1.0, 4 / 8]))
    torch.testing.assert_close(length[:, 2], torch.tensor([0.0, 0.0, 4 / 8]))
    torch.testing.assert_close(length[1, 3], torch.arange(2.0, 10).log().mean())


def test_shares_are_of_ids_whatever_their_order_and_of_pairs_by_it() -> None:
    x = torch.randint(1, 5000, (20, 30))
    x[:, -1] = 0
    shuffled = torch.cat([x[:, torch.randperm(29)], x[:, 29:]], 1)
    one, other = token_numbers(x), token_numbers(shuffled)
    torch.testing.assert_close(one["tokens"], other["tokens"])
    assert not torch.equal(one["order"], other["order"])
    for name in ("tokens", "order"):
        torch.testing.assert_close(one[name].square().sum(1), torch.ones(20))


def test_ids_are_spread_evenly_over_buckets() -> None:
    shares = token_numbers(torch.arange(6400).view(1, -1))["tokens"].square()[0]
    assert 0.5 / 64 < float(shares.min()) <= float(shares.max()) < 2 / 64


def test_series_are_known_by_levels_changes_and_course() -> None:
    x = torch.randn(7, 16, 2)
    found = series_numbers(x)
    torch.testing.assert_close(found["levels"], torch.cat([x.mean(1), x.amin(1), x.amax(1)], 1))
    first = (x[:, 1:] - x[:, :-1]).square().mean(1)
    torch.testing.assert_close(found["changes"][:, 2:4], (first + 1e-6).log() / 2)
    torch.testing.assert_close(found["course"].view(7, 2, 8), x.view(7, 8, 2, 2).mean(2).transpose(1, 2))


@pytest.mark.parametrize("shape", [(1,), (2,), (40,), (1, 1), (2, 3), (50, 3), (9, 200)])
def test_sequences_of_any_shape_have_finite_numbers_whoever_stands_beside_them(shape: tuple[int, ...]) -> None:
    ids = len(shape) == 1
    for count in (0, 6, 450):
        x = torch.randint(0, 2**31, (count, *shape)) if ids else torch.randn(count, *shape)
        for name, numbers in input_numbers(x).items():
            assert numbers.shape[0] == count, name
            assert numbers.shape[1] <= NUMBERS
            assert numbers.dtype == torch.float32
            assert numbers.isfinite().all()
