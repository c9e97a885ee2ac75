"""Functions for the local part of custom methods, in one place.

The vocabulary (`Method`, `Round`, `Site`, `Update` and so on) and the methods to start from are in `caveat` itself.
"""

from ..core import Aggregate, Weights, Work, always, evaluation, keep
from ..core.settings import LARGE, MANY
from ..nn.dropout import mc_dropout
from ..training.fit import Loss, Training
from ..training.modules import (
    current,
    frozen,
    in_batches,
    learning,
    load,
    normalisation,
    snapshot,
    split,
    tensors_of,
    zeros,
)

__all__ = [
    "LARGE",
    "MANY",
    "Aggregate",
    "Loss",
    "Training",
    "Weights",
    "Work",
    "always",
    "current",
    "evaluation",
    "frozen",
    "in_batches",
    "keep",
    "learning",
    "load",
    "mc_dropout",
    "normalisation",
    "snapshot",
    "split",
    "tensors_of",
    "zeros",
]
