"""Fixed-point sums: within their bound of the plain mean, exact for integers, and refused before they overflow."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from caveat.core import DataError, Payload, Replies, RunError, Update
from caveat.secure.fixed_point import CHECKS, FRACTION, Layout, decode, encode, layout_of, sum_in_the_clear


def payloads(silos: int, seed: int = 0) -> dict[str, Payload]:
    draw = torch.Generator().manual_seed(seed)
    return {
        f"silo{k}": {
            "model": {
                "weight": torch.randn(3, 4, generator=draw),
                "bias": torch.randn((), generator=draw, dtype=torch.float64),
                "batches": torch.tensor(7 + k),
            },
            "empty": {},
            "counts": {"bins": torch.randint(0, 1000, (5,), generator=draw).double()},
        }
        for k in range(silos)
    }


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**32))
def test_means_are_within_the_bound_of_the_plain_mean(silos: int, seed: int) -> None:
    given_, weights = payloads(silos, seed), {f"silo{k}": 1 + 17 * k for k in range(silos)}
    layout, total = sum_in_the_clear(given_, weights, silos)
    plain = Replies({name: Update(each, weights[name]) for name, each in given_.items()}, silos)
    means = total.means(layout)
    bound = silos * 2.0 ** -(FRACTION + 1) / sum(weights.values())
    assert float((means["model"]["bias"] - plain.mean("model")["bias"]).abs()) <= bound + 1e-15
    difference = (means["model"]["weight"] - plain.mean("model")["weight"]).abs().max()
    assert float(difference) <= bound + 2e-7  # both are rounded to float32
    assert means["model"]["weight"].dtype == torch.float32
    assert (total.silos, total.weight) == (silos, sum(weights.values()))


def test_counts_and_integers_are_exact() -> None:
    given_ = payloads(6)
    layout, total = sum_in_the_clear(given_, dict.fromkeys(given_, 1), 6)
    exact = torch.stack([each["counts"]["bins"] for each in given_.values()]).sum(0)
    assert torch.equal(total.sums["counts"]["bins"], exact)
    assert int(total.sums["model"]["batches"]) == sum(7 + k for k in range(6))
    assert total.means(layout)["empty"] == {}


def test_the_order_of_silos_does_not_matter() -> None:
    given_ = payloads(5)
    layout = layout_of(given_["silo0"])
    words = [encode(each, 3, 5) for each in given_.values()]
    one, other = decode(sum(words[1:], words[0]), layout), decode(sum(words[-2::-1], words[-1]), layout)
    assert torch.equal(one.sums["model"]["weight"], other.sums["model"]["weight"])


@pytest.mark.parametrize("value", [2.0**31 / 4, -(2.0**31) / 4, float("inf"), float("nan")])
def test_numbers_that_could_overflow_are_refused_by_name(value: float) -> None:
    with pytest.raises(RunError, match="model/w has an entry that is infinite, NaN or too large") as caught:
        encode({"model": {"w": torch.tensor([0.0, value], dtype=torch.float64)}}, 917, 4)
    assert "917" not in str(caught.value)  # nor any other number of the silo


@pytest.mark.parametrize("weight", [-5, 0, 2**31 + 1, 2**63])
def test_a_weight_is_from_1_to_2_to_the_31(weight: int) -> None:
    with pytest.raises(RunError, match="must be from 1 to 2,147,483,648"):
        encode({"m": {"w": torch.zeros(2)}}, weight, 3)


@settings(deadline=None)
@given(st.floats(-(2.0**17), 2.0**17), st.integers(1, 1001))
def test_the_error_of_one_silo_is_within_the_stated_bound(value: float, weight: int) -> None:
    words = encode({"m": {"w": torch.tensor([value], dtype=torch.float64)}}, weight, 3)
    exact = Fraction(value) * weight
    error = abs(Fraction(int(words.view(np.int64)[2]), 2**FRACTION) - exact)
    assert error <= Fraction(1, 2 ** (FRACTION + 1)) + abs(exact) / 2**53


def test_tensors_are_sorted_by_name() -> None:
    one, other = {"m": {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}}, {"m": {}}
    other["m"] = dict(reversed(one["m"].items()))
    assert layout_of(one) == layout_of(other)
    assert encode(one, 1, 3).tolist() == encode(other, 1, 3).tolist()


def test_the_largest_accepted_numbers_do_not_overflow() -> None:
    large = 2.0**31 / 4 * (1 - 2**-20)
    given_ = {name: {"model": {"w": torch.tensor([large, -large], dtype=torch.float64)}} for name in "abcd"}
    _, total = sum_in_the_clear(given_, dict.fromkeys(given_, 1), 4)
    assert total.sums["model"]["w"].tolist() == [4 * large, -4 * large]


def test_integers_that_could_overflow_are_refused() -> None:
    with pytest.raises(RunError, match="m/n has an integer"):
        encode({"m": {"n": torch.tensor([-(2**63)])}}, 1, 3)


def test_other_tensors_are_refused() -> None:
    given_ = payloads(3)
    del given_["silo2"]["model"]["bias"]
    with pytest.raises(RunError, match="'silo2' has different tensors"):
        sum_in_the_clear(given_, dict.fromkeys(given_, 1), 3)


def test_a_layout_is_read_back_from_its_text() -> None:
    layout = layout_of(payloads(1)["silo0"])
    assert Layout.of_text(layout.to_text()) == layout
    assert layout.words == CHECKS + 12 + 1 + 1 + 5
    assert layout.form()["model"]["weight"].shape == (3, 4)


@pytest.mark.parametrize(
    "text",
    ["", "{}", '[["m"], [["m", "w", [-1], "float32"]]]', '[["m"], [["n", "w", [1], "float32"]]]',
     '[["m"], [["m", "w", [1], "complex64"]]]', '[["m"], [["m", "w", [9999999999], "float32"]]]',
     '[["m"], [["m", "w", [Infinity], "float32"]]]'],
)  # fmt: skip
def test_an_invalid_layout_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="invalid layout"):
        Layout.of_text(text)


def test_words_are_numbers_modulo_2_to_the_64() -> None:
    words = encode({"m": {"w": torch.tensor([-1.5, 0.25])}}, 2, 3)
    assert words.dtype == np.uint64
    assert words.tolist() == [1, 2, 2**64 - 3 * 2**32, 2**31]
