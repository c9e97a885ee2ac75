"""The methods, by the name a configuration gives them. Nothing else in the package knows one by name."""

from .apfl import APFL
from .ditto import Ditto
from .fedala import FedALA
from .fedavg import FedAvg
from .fedbabu import FedBABU
from .fedbn import FedBN
from .feddc import FedDC
from .feddisco import FedDisco
from .feddyn import FedDyn
from .fediir import FedIIR
from .fedper import FedPer
from .fedpn import FedPN
from .fedproto import FedProto
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedRoD
from .fedsr import FedSR
from .fml import FML
from .fmlu import FMLU
from .ifca import IFCA
from .local import Local
from .moon import MOON
from .perfedavg import PerFedAvg
from .registry import Methods, Registered
from .scaffold import SCAFFOLD
from .trfeddis import TrFedDis
from .uefl import UEFL

METHODS = Methods({
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedbn": FedBN,
    "scaffold": SCAFFOLD,
    "moon": MOON,
    "feddyn": FedDyn,
    "feddc": FedDC,
    "feddisco": FedDisco,
    "ifca": IFCA,
    "fedsr": FedSR,
    "fediir": FedIIR,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "perfedavg": PerFedAvg,
    "apfl": APFL,
    "ditto": Ditto,
    "fedrod": FedRoD,
    "fedala": FedALA,
    "fedproto": FedProto,
    "uefl": UEFL,
    "fedpn": FedPN,
    "fml": FML,
    "fmlu": FMLU,
    "trfeddis": TrFedDis,
})  # fmt: skip


def register(cls: Registered) -> Registered:
    """Have configurations and commands know a method of one's own by its name: a decorator above `frozen_settings`.

    The name is the class's in small letters, unless `name` says otherwise. Raises ConfigurationError for a name that is
    taken, and for a class that a configuration cannot build: settings that are not frozen or lack a default, no
    docstring, no schedule.
    """
    METHODS.add(cls)
    return cls


__all__ = [
    "APFL",
    "FML",
    "FMLU",
    "IFCA",
    "METHODS",
    "MOON",
    "SCAFFOLD",
    "UEFL",
    "Ditto",
    "FedALA",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedDC",
    "FedDisco",
    "FedDyn",
    "FedIIR",
    "FedPN",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSR",
    "Local",
    "PerFedAvg",
    "TrFedDis",
    "register",
]
