"""FedPer: FedAvg in which the head stays at its silo.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818, 2019, Algorithms 1 and 2.

Our choices: all silos start with the same random head. The head is everything after the encoder, including the hidden
layer: with a large hidden layer most parameters stay at the silo. With `stays` = "last" it is the last linear layer
only.
"""

from typing import ClassVar, Literal

from torch import nn

from ..core import ConfigurationError, Decision
from ..core.settings import frozen_settings
from .fedavg import FedAvg


@frozen_settings
class FedPer(FedAvg):
    """FedAvg of all layers except the head, which stays at the silo (Arivazhagan et al., 2019)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    stays: Literal["head", "last"] = "head"
    """The part that stays at the silo: head (everything after the encoder), or last (the last linear layer only)."""

    def private(self, module: nn.Module) -> frozenset[str]:
        return names_below(module, path_of_part(module, self.stays, self.name))


def path_of_part(module: nn.Module, part: str, method: str, setting: str = "stays") -> str:
    """Return the path of a module's head ("head") or of its last linear layer ("last").

    Raises ConfigurationError if the module has none; the error names what a custom module lacks.
    """
    if part == "head":
        if not isinstance(getattr(module, "head", None), nn.Module):
            raise ConfigurationError(
                f"{method} needs to know a model's head, and {type(module).__name__} has none: give it attributes "
                f'`encoder` and `head`, let it compute head(encoder(x)), or set method.{setting} = "last", for '
                "its last linear layer",
                "model",
            )
        return "head"
    linear = [path for path, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not linear:
        raise ConfigurationError(f"{{key}} = 'last': {type(module).__name__} has no linear layer", f"method.{setting}")
    return str(linear[-1])


def names_below(module: nn.Module, path: str) -> frozenset[str]:
    """Return the names of the tensors of a part of a module.

    Raises ConfigurationError if one of them is tied to a tensor outside the part: it cannot both stay and be sent.
    """
    inside = frozenset(f"{path}.{name}" for name in module.get_submodule(path).state_dict())
    every = dict(module.named_parameters(remove_duplicate=False))
    outside = {id(p): name for name, p in every.items() if name not in inside}
    for name in sorted(inside & every.keys()):
        if id(every[name]) in outside:
            raise ConfigurationError(
                f"{name!r} is tied to {outside[id(every[name])]!r}, so it cannot stay at the silo alone; use a "
                "method that sends the whole model (fedavg), or a model without tied weights",
                "model",
            )
    return inside
