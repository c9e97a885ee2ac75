"""Which methods `make test` tries, where a test is about a mechanism that methods share; `make test-long` tries all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    "UEFL": "adds rounds and codewords depending on what silos report",
    "FedPN": "trains a density in later rounds, and sums statistics instead of averaging",
    "Private": "clips updates and adds noise, as a wrapper",
    "Ensemble": "trains members one after another, each with the rounds of the method",
    "Conformal": "calibrates guarantees in rounds after the last one",
}
"""The methods and wrappers that differ in what silos or the server keep, in what they send, or in the schedule."""


def sampled(methods: Iterable[Method | str]) -> list[Any]:
    """Parameters of a test: the first of each class in DIFFERENT for `make test`, the others for `make test-long`."""
    seen, found = set[type[Method]](), []
    for each in methods:
        kind = METHODS[each] if isinstance(each, str) else type(each)
        short = kind.__name__ in DIFFERENT and kind not in seen
        seen.add(kind)
        found.append(pytest.param(each, marks=() if short else pytest.mark.long))
    return found
