"""caveat: uncertainty-aware federated learning in heterogeneous data silos."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import data
    from .api import load, run
    from .experiment import Run
    from .local import Training
    from .methods import SCAFFOLD, UEFL, FedAvg, FedBN, FedProx, Local
    from .nn.models import ModelSettings
    from .prediction import Decision, Prediction

_PLACES = {
    "data": "",
    "run": "api", "load": "api",
    "Run": "experiment",
    "Training": "local",
    "SCAFFOLD": "methods", "UEFL": "methods", "FedAvg": "methods", "FedBN": "methods", "FedProx": "methods",
    "Local": "methods",
    "ModelSettings": "nn.models",
    "Decision": "prediction", "Prediction": "prediction",
}  # fmt: skip
"""Where each public name is, so that nothing heavy is imported before it is used."""

__all__ = [
    "SCAFFOLD",
    "UEFL",
    "Decision",
    "FedAvg",
    "FedBN",
    "FedProx",
    "Local",
    "ModelSettings",
    "Prediction",
    "Run",
    "Training",
    "__version__",
    "data",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'caveat' has no attribute {name!r}")
    place = _PLACES[name]
    return getattr(import_module(f".{place}", __name__), name) if place else import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return __all__
