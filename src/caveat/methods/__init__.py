"""The methods, by the name a configuration gives them. Nothing else in the package knows one by name."""

from ..core import Method
from .fedavg import FedAvg
from .fedbn import FedBN
from .fedprox import FedProx
from .local import Local
from .scaffold import SCAFFOLD
from .uefl import UEFL

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedbn": FedBN,
    "scaffold": SCAFFOLD,
    "uefl": UEFL,
}

__all__ = ["METHODS", "SCAFFOLD", "UEFL", "FedAvg", "FedBN", "FedProx", "Local"]
