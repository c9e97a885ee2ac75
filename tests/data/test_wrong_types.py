"""Calls of `caveat.data` with something of another type: one line that says what was expected, and no bare error."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from data_samples import labeled_images

from caveat import data
from caveat.core import CaveatError, Silo

X, Y = labeled_images(90, size=8)
GOOD = {"a": (X, Y), "b": (X, Y)}


def nobody(number: int, name: str) -> Silo:
    raise AssertionError(f"{name} was made")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: data.from_arrays([1, 2]), "silos has type list, expected a mapping from names to arrays"),
        (lambda: data.from_arrays(None), "silos has type NoneType"),
        (lambda: data.from_arrays({"a": 3}), "silo 'a': found a value of type int, expected (x, y)"),
        (lambda: data.from_arrays({"a": "xy"}), "silo 'a': found a value of type str, expected (x, y)"),
        (
            lambda: data.from_arrays({"a": ([[1, 2], [3]], [0, 1])}),
            "silo 'a': x: rows of different lengths, from 1 to 2",
        ),
        (lambda: data.from_arrays(GOOD, classes=5), "classes has type int, expected a list of names"),
        (lambda: data.from_arrays(GOOD, classes="abc"), "classes has type str, expected a list of names"),
        (lambda: data.from_arrays(GOOD, seed="x"), "seed = 'x': must be a whole number"),
        (lambda: data.from_arrays(GOOD, seed=math.nan), "seed = nan: must be a whole number"),
        (lambda: data.rotated(3), "pool has type int, expected a Pool"),
        (lambda: data.rotated(data.digits(), angles=5), "angles has type int, expected a list"),
        (lambda: data.rotated(data.digits(), noise_std=4), "noise_std has type int, expected a list"),
        (lambda: data.rotated(data.digits(), silos_per_angle=math.nan), "silos_per_angle has type float"),
        (lambda: data.rotated(data.digits(), seed=None), "seed = None: must be a whole number"),
        (lambda: data.load(None, 0), "settings has type NoneType, expected DataSettings"),
        (lambda: data.load(data.DataSettings(n_silos=3), math.nan), "seed = nan: must be a whole number"),
        (lambda: data.read(None), "settings has type NoneType, expected DataSettings"),
        (lambda: data.survey(3), "source has type int, expected a path or a source"),
        (lambda: data.population(2.5, nobody, ["a"]), "count has type float, expected a whole number"),
        (lambda: data.population(2, 3, ["a"]), "make has type int, expected a function"),
        (lambda: data.resized(X[..., None], math.nan), "size has type float, expected a whole number"),
        (lambda: data.resized(X[..., None], 0), "size = 0: expected at least 1 pixel"),
        (lambda: data.recolored(3, 1), "images has type int, expected an array"),
        (lambda: data.with_streams(3), "silos has type int, expected Silos"),
        (lambda: data.with_streams(data.from_arrays(GOOD), ood_global=3), "ood_global has type int, expected an array"),
    ],
)
def test_another_type_is_one_line(call: Callable[[], object], told: str) -> None:
    with pytest.raises(CaveatError) as caught:
        call()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_of_numpy_are_seeds_as_well() -> None:
    assert len(data.from_arrays(GOOD, seed=np.int64(3))) == 2
