"""How uncertain predictions are, and why: pure functions of tensors, independent of federations."""

from . import dirichlet, opinions
from .measures import Decomposition, entropy, expected_entropy, mutual_information, plug_in_mutual_information

__all__ = [
    "Decomposition", "dirichlet", "entropy", "expected_entropy", "mutual_information", "opinions",
    "plug_in_mutual_information",
]  # fmt: skip
