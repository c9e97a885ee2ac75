"""caveat: uncertainty-aware federated learning in heterogeneous data silos."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import data, uncertainty
    from .analysis.audit.procedure import audit
    from .api import compare, join, load, load_comparison, plan, run
    from .core import (
        Answers,
        CaveatError,
        ConfigurationError,
        Data,
        DataError,
        Decision,
        Method,
        Payload,
        Prediction,
        Replies,
        Round,
        RunError,
        Silo,
        Site,
        State,
        Tensors,
        Update,
    )
    from .core.settings import frozen_settings
    from .estimator import FederatedClassifier
    from .export.export_model import export_model
    from .methods import (
        APFL,
        FML,
        FMLU,
        IFCA,
        METHODS,
        MOON,
        SCAFFOLD,
        UEFL,
        Ditto,
        FedALA,
        FedAvg,
        FedBABU,
        FedBN,
        FedDC,
        FedDisco,
        FedDyn,
        FedIIR,
        FedPer,
        FedPN,
        FedProto,
        FedProx,
        FedRep,
        FedRoD,
        FedSR,
        Local,
        PerFedAvg,
        TrFedDis,
        register,
    )
    from .metrics.own import metric
    from .nn.models import ModelSettings, PersonalModel
    from .runs.callbacks import Callback
    from .runs.local import Run
    from .trackers import MLflow, TensorBoard, WandB
    from .training.fit import Training
    from .wrappers.privacy import Privacy
    from .wrappers.server import ServerOptimizer
    from .wrappers.uncertainty import Uncertainty

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what runs log is for whoever asks for it

_PLACES = {
    "data": "", "uncertainty": "",
    "run": "api", "join": "api", "load": "api", "compare": "api", "load_comparison": "api", "plan": "api",
    "audit": "analysis.audit",
    "FederatedClassifier": "estimator",
    "export_model": "export.export_model",
    "Run": "runs.local", "Callback": "runs.callbacks",
    "MLflow": "trackers", "TensorBoard": "trackers", "WandB": "trackers",
    "Training": "training.fit",
    "APFL": "methods", "FML": "methods", "FMLU": "methods", "SCAFFOLD": "methods", "UEFL": "methods",
    "FedAvg": "methods", "FedBABU": "methods", "FedBN": "methods", "FedPer": "methods", "FedPN": "methods",
    "FedProx": "methods", "FedRep": "methods", "Local": "methods", "PerFedAvg": "methods",
    "TrFedDis": "methods",
    "FedDC": "methods", "FedDyn": "methods", "MOON": "methods", "Ditto": "methods", "IFCA": "methods",
    "FedALA": "methods", "FedDisco": "methods", "FedProto": "methods", "FedRoD": "methods",
    "FedIIR": "methods", "FedSR": "methods",
    "ModelSettings": "nn.models", "PersonalModel": "nn.models",
    "METHODS": "methods", "register": "methods", "frozen_settings": "core.settings",
    "Answers": "core", "Data": "core", "Decision": "core", "Method": "core", "Payload": "core", "Prediction": "core",
    "Replies": "core", "Round": "core", "Silo": "core", "Site": "core", "State": "core", "Tensors": "core",
    "Update": "core",
    "CaveatError": "core", "ConfigurationError": "core", "DataError": "core", "RunError": "core",
    "Privacy": "wrappers.privacy",
    "ServerOptimizer": "wrappers.server",
    "metric": "metrics.own",
    "Uncertainty": "wrappers.uncertainty",
}  # fmt: skip
"""Where each public name is, so that nothing heavy is imported before it is used."""

__all__ = [
    "APFL",
    "FML",
    "FMLU",
    "IFCA",
    "METHODS",
    "MOON",
    "SCAFFOLD",
    "UEFL",
    "Answers",
    "Callback",
    "CaveatError",
    "ConfigurationError",
    "Data",
    "DataError",
    "Decision",
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
    "FederatedClassifier",
    "Local",
    "MLflow",
    "Method",
    "ModelSettings",
    "Payload",
    "PerFedAvg",
    "PersonalModel",
    "Prediction",
    "Privacy",
    "Replies",
    "Round",
    "Run",
    "RunError",
    "ServerOptimizer",
    "Silo",
    "Site",
    "State",
    "TensorBoard",
    "Tensors",
    "TrFedDis",
    "Training",
    "Uncertainty",
    "Update",
    "WandB",
    "__version__",
    "audit",
    "compare",
    "data",
    "export_model",
    "frozen_settings",
    "join",
    "load",
    "load_comparison",
    "metric",
    "plan",
    "register",
    "run",
    "uncertainty",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'caveat' has no attribute {name!r}")
    place = _PLACES[name]
    return getattr(import_module(f".{place}", __name__), name) if place else import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return __all__
