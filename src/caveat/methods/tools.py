"""Functions for the client tasks of custom methods.

`Method`, `Round`, `SiloContext`, `Update` and so on, and the built-in methods, are in `caveat` itself.
"""

from ..core import Aggregate, SiloTask, Weights, always, evaluation, keep
from ..core.settings import LARGE, MAX_COUNT
from ..nn.dropout import mc_dropout
from ..training.fit import Loss, Training
from ..training.modules import (
    current,
    frozen,
    in_batches,
    learning,
    load,
    normalization,
    snapshot,
    split,
    tensors_of,
    zeros,
)

__all__ = [
    "LARGE", "MAX_COUNT", "Aggregate", "Loss", "SiloTask", "Training", "Weights", "always", "current", "evaluation",
    "frozen", "in_batches", "keep", "learning", "load", "mc_dropout", "normalization", "snapshot", "split",
    "tensors_of", "zeros",
]  # fmt: skip
