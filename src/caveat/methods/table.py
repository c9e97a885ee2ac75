"""The methods, by the name a configuration gives them. Nothing else in the package knows one by name."""

from .registry import Methods, Registered

METHODS = Methods({
    "local": "local.Local",
    "fedavg": "fedavg.FedAvg",
    "fedprox": "fedprox.FedProx",
    "fedbn": "fedbn.FedBN",
    "scaffold": "scaffold.SCAFFOLD",
    "moon": "moon.MOON",
    "feddyn": "feddyn.FedDyn",
    "feddc": "feddc.FedDC",
    "feddisco": "feddisco.FedDisco",
    "ifca": "ifca.IFCA",
    "fedsr": "fedsr.FedSR",
    "fediir": "fediir.FedIIR",
    "fedper": "fedper.FedPer",
    "fedrep": "fedrep.FedRep",
    "fedbabu": "fedbabu.FedBABU",
    "perfedavg": "perfedavg.PerFedAvg",
    "apfl": "apfl.APFL",
    "ditto": "ditto.Ditto",
    "fedrod": "fedrod.FedRoD",
    "fedala": "fedala.FedALA",
    "fedproto": "fedproto.FedProto",
    "uefl": "uefl.UEFL",
    "fedpn": "fedpn.FedPN",
    "fml": "fml.FML",
    "fmlu": "fmlu.FMLU",
    "trfeddis": "trfeddis.TrFedDis",
})  # fmt: skip


def register(cls: Registered) -> Registered:
    """Have configurations and commands know a method of one's own by its name: a decorator above `frozen_settings`.

    The name is the class's in small letters, unless `name` says otherwise. Raises ConfigurationError for a name that is
    taken, and for a class that a configuration cannot build: settings that are not frozen or lack a default, no
    docstring, no schedule.
    """
    METHODS.add(cls)
    return cls
