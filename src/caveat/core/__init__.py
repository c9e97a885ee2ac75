"""The vocabulary: what a federated method is made of.

A method is a frozen set of hyperparameters with a schedule of rounds; a round is broadcast, work at the
silos, aggregate; and all that is sent or kept is one kind of value, groups of named tensors.
"""

from .aggregation import Replies
from .errors import CaveatError, ConfigurationError, ConfigurationErrors, DataError, DataWarning, Refused, RunError
from .method import (
    Aggregate,
    Function,
    Method,
    Round,
    SumOver,
    Weights,
    Work,
    always,
    evaluation,
    horizon,
    is_evaluation,
    keep,
    nothing,
    same_names,
)
from .prediction import Answers, Decision, Prediction
from .random import key, seeded
from .silo import AugmentedData, Data, Silo, Site, TestSite
from .tensors import Payload, SiloId, State, Tensors, Update, check_silo_name, size

__all__ = [
    "Aggregate",
    "Answers",
    "AugmentedData",
    "CaveatError",
    "ConfigurationError",
    "ConfigurationErrors",
    "Data",
    "DataError",
    "DataWarning",
    "Decision",
    "Function",
    "Method",
    "Payload",
    "Prediction",
    "Refused",
    "Replies",
    "Round",
    "RunError",
    "Silo",
    "SiloId",
    "Site",
    "State",
    "SumOver",
    "Tensors",
    "TestSite",
    "Update",
    "Weights",
    "Work",
    "always",
    "check_silo_name",
    "evaluation",
    "horizon",
    "is_evaluation",
    "keep",
    "key",
    "nothing",
    "same_names",
    "seeded",
    "size",
]
