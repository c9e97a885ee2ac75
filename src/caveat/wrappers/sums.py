"""What sums over a silo's inputs cannot be, by what the silo says to have: in words, empty where nothing is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Tensors

SLACK = 1e-6
"""The relative error that is allowed in sums of numbers that are no counts."""


def no_counts(name: str, counts: Tensor, most: float) -> str:
    """Why numbers are no counts of inputs of which each is counted once, and of which there are so many at most."""
    whole = bool(((counts >= 0) & (counts == counts.floor())).all())
    if whole and float(counts.sum()) <= most:
        return ""
    return f"{name} are no counts of {most:.0f} inputs at most"


def no_histograms(histograms: Tensors, most: float) -> str:
    """Why tensors are no histograms of so many inputs at most."""
    found = (no_counts(name, each, most) for name, each in histograms.items())
    return next((why for why in found if why), "")


def not_within(name: str, numbers: Tensor, low: Tensor | float, high: Tensor | float) -> str:
    """Why numbers are not between these bounds, (...) of the same shape or one for all."""
    low, high = torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
    room = SLACK * (1 + torch.maximum(low.abs(), high.abs()))
    if bool(((numbers >= low - room) & (numbers <= high + room)).all()):
        return ""
    return f"{name} are beyond what so many inputs can come to"


def no_scatter(name: str, squares: Tensor, total: Tensor | None = None) -> str:
    """Why (d, d) `squares`, less what is their part by means, are no sums of squares: they have a negative direction.

    How negative is held against the largest of the `total`, since what was taken away was rounded as that was.
    """
    squares = squares.double()
    largest = float((squares if total is None else total).diagonal().abs().max()) if len(squares) else 0.0
    symmetric = bool(((squares - squares.T).abs() <= SLACK * (1 + largest)).all())
    least = float(torch.linalg.eigvalsh(squares)[0]) if len(squares) else 0.0
    if symmetric and least >= -SLACK * (1 + largest) * len(squares):
        return ""
    return f"{name} are no sums of products: they have a negative variance"
