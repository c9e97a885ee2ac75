"""Weights of classes in a loss: what a user may say, and what balances the labels of a silo."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import PlainValidator
from torch import Tensor

from ..core.settings import LARGE


def _weights(value: object) -> str | tuple[float, ...]:
    if isinstance(value, str) and value in ("none", "balanced"):
        return value
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        numbers = ()
    if not any(numbers) or not all(math.isfinite(each) and 0 <= each <= LARGE for each in numbers):
        raise ValueError(f"must be none, balanced or a list of numbers from 0 to {LARGE:g}, one per class, not all 0")
    return tuple(map(float, numbers))


ClassWeights = Annotated[str | tuple[float, ...], PlainValidator(_weights)]
"""none, balanced, or a number per class."""


def balanced(y: Tensor) -> tuple[float, ...]:
    """n / (K n_c) for each class c of labels (N,), of which K classes have any (King & Zeng, Logistic Regression in
    Rare Events Data, 2001): each class counts as much, and an example 1 in the mean. 0 for a class that has none.
    """
    counts = torch.bincount(y).double()
    present = int((counts > 0).sum())
    return tuple(torch.where(counts > 0, len(y) / (present * counts), 0.0).tolist())
