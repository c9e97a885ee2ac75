"""The vocabulary of federated methods.

A method is a frozen set of hyperparameters with a schedule of rounds. A round is a broadcast, client tasks at the silos
and an aggregation. Everything that is sent or stored has the same type: groups of named tensors.
"""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
