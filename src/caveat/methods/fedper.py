"""FedPer: FedAvg in which the head stays at its silo.

Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818, 2019, Algorithms 1 and 2.

Ours: every silo's head starts as the same random one. The head is all behind the encoder's tokens, its hidden layer
included: with a large hidden layer most parameters stay at the silo. With `stays` = "last" it is the last linear layer
alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from ..core import ConfigurationError, Decision
from ..core.settings import frozen_settings
from .fedavg import FedAvg


@frozen_settings
class FedPer(FedAvg):
    """FedAvg of everything but the head, which stays at the silo (Arivazhagan et al., 2019)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    stays: Literal["head", "last"] = "head"
    """What stays at the silo: the head, all behind the encoder's tokens, or the last linear layer alone."""

    def private(self, module: nn.Module) -> frozenset[str]:
        return names_below(module, path_of_part(module, self.stays, self.name))


def path_of_part(module: nn.Module, part: str, method: str, setting: str = "stays") -> str:
    """Where a module's head is ("head"), or its last linear layer ("last"), as a setting of the method says.

    Raises ConfigurationError, which says what a module of one's own lacks, if it has none.
    """
    if part == "head":
        if not isinstance(getattr(module, "head", None), nn.Module):
            raise ConfigurationError(
                f"{method} needs to know a model's head, and {type(module).__name__} shows none: give it attributes "
                f'`encoder` and `head`, and have it compute head(encoder(x)), or set method.{setting} = "last", for '
                "its last linear layer",
                "model",
            )
        return "head"
    linear = [path for path, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not linear:
        raise ConfigurationError(
            f"{{key}} = 'last': {type(module).__name__} has no linear layer",
            f"method.{setting}",
        )
    return str(linear[-1])


def names_below(module: nn.Module, path: str) -> frozenset[str]:
    """Names of the tensors of a part of a module.

    Raises ConfigurationError if one of them is tied to a tensor elsewhere: it cannot both stay and travel.
    """
    inside = frozenset(f"{path}.{name}" for name in module.get_submodule(path).state_dict())
    every = dict(module.named_parameters(remove_duplicate=False))
    outside = {id(p): name for name, p in every.items() if name not in inside}
    for name in sorted(inside & every.keys()):
        if id(every[name]) in outside:
            raise ConfigurationError(
                f"{name!r} is tied to {outside[id(every[name])]!r}, so that it cannot be kept apart from it; use a "
                "method that sends the whole model (fedavg), or a model without tied weights",
                "model",
            )
    return inside
