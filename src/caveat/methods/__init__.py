"""The methods, by the name a configuration gives them. Nothing else in the package knows one by name."""

from ..core import Method
from .apfl import APFL
from .fedavg import FedAvg
from .fedbabu import FedBABU
from .fedbn import FedBN
from .fedper import FedPer
from .fedpn import FedPN
from .fedprox import FedProx
from .fedrep import FedRep
from .local import Local
from .perfedavg import PerFedAvg
from .scaffold import SCAFFOLD
from .uefl import UEFL

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedbn": FedBN,
    "scaffold": SCAFFOLD,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "perfedavg": PerFedAvg,
    "apfl": APFL,
    "uefl": UEFL,
    "fedpn": FedPN,
}

__all__ = [
    "APFL",
    "METHODS",
    "SCAFFOLD",
    "UEFL",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedPN",
    "FedPer",
    "FedProx",
    "FedRep",
    "Local",
    "PerFedAvg",
]
