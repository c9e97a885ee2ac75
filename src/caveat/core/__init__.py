"""The vocabulary: what a federated method is made of.

A method is a frozen set of hyperparameters with a schedule of rounds; a round is broadcast, work at the
silos, aggregate; and all that is sent or kept is one kind of value, groups of named tensors.
"""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
