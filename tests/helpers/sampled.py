"""Which methods `make test` tries, where a test is about a mechanism that methods share; `make test-long` tries all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from caveat import METHODS, Method

DIFFERENT = {
    "FedAvg": "averages the whole model",
    "FedBN": "keeps part of the model at each silo and averages the rest",
    "SCAFFOLD": "keeps control variates at the silos and at the server, and sends them beside the model",
    "IFCA": "keeps several models at the server, and each silo chooses one",
    "FedBABU": "trains the silos' heads once more after the last round",
    "APFL": "keeps a second model at each silo and mixes it with the averaged one",
    "FMLU": "trains two models of different architectures, which teach each other",
    "TrFedDis": "keeps one of two heads at each silo and answers with evidence",
    "PFedBayes": "draws weights in training, and sends squares of changes beside the model",
    "UEFL": "adds rounds and codewords depending on what silos report",
    "FedPN": "trains a density in later rounds, and sums statistics instead of averaging",
    "Private": "clips updates and adds noise, as a wrapper",
    "Ensemble": "trains members one after another, each with the rounds of the method",
    "Snapshots": "keeps copies of earlier states at the server and at silos",
    "Conformal": "calibrates guarantees in rounds after the last one",
}
"""The methods and wrappers that differ in what silos or the server keep, in what they send, or in the schedule."""


Named = TypeVar("Named", Method, str)


def different(methods: Iterable[Named]) -> list[Named]:
    """The first of each class in DIFFERENT, of methods or their names."""
    kinds = {name: METHODS[name].__name__ for name in METHODS}
    first: dict[str, Named] = {}
    for each in methods:
        first.setdefault(kinds[each] if isinstance(each, str) else type(each).__name__, each)
    return [each for kind, each in first.items() if kind in DIFFERENT]


def sampled(methods: Iterable[Named]) -> list[Any]:
    """Parameters of a test: those that are different for `make test`, and all others for `make test-long`."""
    methods = list(methods)
    short = {id(each) for each in different(methods)}
    return [pytest.param(each, marks=() if id(each) in short else pytest.mark.long) for each in methods]
