"""Mistakes in a user's own silos are one line each, which names the silo, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import caveat
from caveat import data
from caveat.core import CaveatError, Data, DataError, Silo
from caveat.data.silo_collection import Silos, population
from caveat.data.user_data import from_arrays

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 5)).astype(np.float32), np.arange(80) % 2
HOLED = np.where(np.eye(80, 5), np.nan, X)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0] * (1 + i % 3) for i in range(80)], Y, "x: rows of different lengths, from 1 to 3; expected"),
        ([np.ones((2, 1 + i % 2)) for i in range(80)], Y, "x: rows of different shapes; expected rows of equal"),
        (torch.from_numpy(X).requires_grad_(), Y, "x requires a gradient, expected data; use tensor.detach()"),
        (X, torch.ones(80, requires_grad=True), "y requires a gradient"),
        (torch.from_numpy(X).bfloat16(), Y, "x has dtype bfloat16"),
        (torch.from_numpy(X).to_sparse(), Y, "x is a sparse tensor"),
        (torch.from_numpy(X).to("meta"), Y, "x is on device 'meta', expected 'cpu'"),
        (HOLED, Y, "5 values are NaN or infinite, the first at row 0, column 0"),
        (X, np.eye(2)[Y], "labels have shape (80, 2), expected (N,), one label"),
        (X.astype(str), Y, "features have dtype <U32, expected numbers"),
    ],
)
def test_arrays(x: object, y: object, words: str) -> None:
    with pytest.raises(DataError) as caught:
        from_arrays({"a": (x, y), "b": (X, Y)})
    assert words in str(caught.value)
    assert str(caught.value).startswith("silo 'a'")
    assert "\n" not in str(caught.value)


def test_rows_that_are_tensors_are_an_array() -> None:
    silos = from_arrays({"a": ([torch.from_numpy(row) for row in X], [torch.tensor(y) for y in Y])})
    assert torch.equal(silos[0].train.x, from_arrays({"a": (X, Y)})[0].train.x)


@pytest.mark.parametrize(
    ("silos", "classes", "words"),
    [
        ([(X, Y)], None, "silos has type list, expected a mapping from names to arrays"),
        ({"a": {"x": X, "y": Y}}, None, "silo 'a': found a value of type dict, expected (x, y)"),
        ({"a": (X, Y * 0), "b": (X + 1, Y * 0)}, None, "all labels of all silos are '0', expected two classes"),
        ({"a": (X, Y * 0)}, ["one"], "1 class names, expected two or more"),
        ({"a": (X, Y)}, "ab", "classes has type str, expected a list of names"),
    ],
)
def test_silos_and_classes(silos: Any, classes: Any, words: str) -> None:
    with pytest.raises(CaveatError) as caught:
        from_arrays(silos, classes=classes)
    assert words in str(caught.value)


def test_names_of_classes_are_texts() -> None:
    assert from_arrays({"a": (X, Y)}, classes=[0, 1]).classes == ("0", "1")  # type: ignore[list-item]


def silo(name: str, x: Any = None, y: Any = None) -> Silo:
    x = torch.from_numpy(X) if x is None else x
    y = torch.from_numpy(Y) if y is None else y
    return Silo(name, "", *(Data(x[i : i + 20], y[i : i + 20]) for i in range(0, 80, 20)))


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (None, torch.from_numpy(Y).float(), "y has dtype float32, expected int64 class indices; use y.long()"),
        (X, Y, "x has type ndarray, expected a torch.Tensor; use torch.from_numpy"),
        (None, torch.from_numpy(Y) + 1, "label 2 is outside the 2 classes 0..1"),
        (None, torch.from_numpy(Y) - 1, "label -1 is outside the 2 classes 0..1"),
        (None, torch.from_numpy(Y)[:, None], "x has shape (20, 5) and y has shape (20, 1), expected (N, ...) and (N,)"),
        (None, torch.from_numpy(Y)[:70], "x has shape (20, 5) and y has shape (10,)"),
        (torch.from_numpy(HOLED).float(), None, "x has NaN or infinite numbers, the first in row 0; expected finite"),
        (
            torch.from_numpy(X).double(),
            None,
            "x has dtype float64, expected float32, or int64 for token ids; use x.float()",
        ),
        (torch.from_numpy(X).int(), None, "x has dtype int32, expected float32"),
        (torch.from_numpy(X).long() - 9, None, "x has negative numbers, the first in row 0; expected non-negative"),
        (torch.from_numpy(X[:, 0]), None, "x has shape (20,), expected (N, ...)"),
        (torch.from_numpy(X).requires_grad_(), None, "x requires a gradient"),
    ],
)
def test_a_population_and_silos_made_by_hand(x: Tensor | None, y: Tensor | None, words: str) -> None:
    with pytest.raises(DataError) as caught:
        population(3, lambda number, name: silo(name, x, y), ["no", "yes"])
    assert words in str(caught.value)
    assert str(caught.value).startswith("silo 'silo-0', ")
    with pytest.raises(DataError) as caught:
        Silos((silo("a", x, y),), ("no", "yes")).check(8)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda name: silo(name, torch.from_numpy(X[:, :4])),
            "inputs have shape (4,) and dtype float32, expected (5,) and float32",
        ),
        (
            lambda name: silo(name, torch.from_numpy(X).abs().long()),
            "inputs have shape (5,) and dtype int64, expected (5,)",
        ),
        (lambda name: silo(name, torch.from_numpy(HOLED).float()), "NaN"),
        (lambda name: Silo(name, "", *[(X, Y)] * 4), "a value of type tuple, expected caveat.data.Data(x, y)"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_later_silo_of_a_population(make: Callable[[str], Silo], words: str, workers: int) -> None:
    silos = population(3, lambda number, name: make(name) if number == 2 else silo(name), ["no", "yes"])
    with pytest.raises(CaveatError) as caught:
        caveat.run(silos, caveat.FedAvg(rounds=1, training=caveat.Training(batch_size=8)), workers=workers)
    assert words in str(caught.value)
    assert "silo 'silo-2', train" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", [["one"], "ab", 2])
def test_classes_of_a_population(classes: Any) -> None:
    with pytest.raises(DataError, match=r"^population: "):
        population(3, lambda number, name: silo(name), classes)


def test_silos_are_found_by_name() -> None:
    silos = from_arrays({"a": (X, Y), "b": (X, Y)})
    assert silos["b"] is silos[1]
    assert population(3, lambda number, name: silo(name), ["no", "yes"])["silo-2"].name == "silo-2"
    with pytest.raises(DataError, match="no silo 'c', expected one of a, b"):
        silos["c"]


def test_raw_inputs_to_predict_are_finite() -> None:
    silos = from_arrays({"a": (X, Y)})
    with pytest.raises(DataError, match="NaN or infinite"):
        silos.inputs(HOLED)
    with pytest.raises(DataError, match=r"float64, expected \(N, 5\) and float32"):
        silos.inputs(torch.from_numpy(X).double())


def test_streams_are_looked_at() -> None:
    whole = silo("a")
    for label, fits in ((-1, True), (2, False)):
        stream = Data(torch.zeros(3, 5), torch.full((3,), label))
        found = Silos((data.Silo("a", "", *(getattr(whole, n) for n in ("train", "validation", "calibration", "test")),
                                 streams={"ood_global": stream}),), ("no", "yes"))  # fmt: skip
        if fits:
            found.check(8)
        else:
            with pytest.raises(DataError, match="stream ood_global: label 2"):
                found.check(8)
