"""Models by name: what a configuration's `[model]` section builds."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from ..core import ConfigurationError, seeded
from ..settings import STRICT
from .encoders import Model, head, lenet5, mlp, residual

OWN = {"lenet5": {"features"}, "residual": {"width"}, "mlp": {"features", "width"}}
"""Per model, the fields that only some models read."""


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """An encoder and a classifier head."""

    name: Literal["lenet5", "residual", "mlp"] = "residual"
    """lenet5 and residual take images, mlp takes anything."""
    width: Annotated[int, Field(gt=0)] | None = None
    """residual: channels of the first block (16 by default; 128 in the paper); mlp: hidden units (64 by default)."""
    features: Annotated[int, Field(gt=0)] | None = None
    """lenet5 (84 by default) and mlp (32 by default): numbers per token between encoder and head."""
    hidden: Annotated[int, Field(gt=0)] = 128
    """Hidden units of the classifier head."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Probability that the head drops a hidden unit; MC dropout samples with it. 0 switches both off."""
    dropout_logits: bool = False
    """Also drop logits, as UEFL's released code does."""

    def __post_init__(self) -> None:
        for name in ("width", "features"):
            if getattr(self, name) is not None and name not in OWN[self.name]:
                raise ConfigurationError(f"model.{name} = {getattr(self, name)} has no meaning for model {self.name!r}")


def build_model(settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int) -> Model:
    """A freshly initialised model for inputs of `shape`, (C, H, W) or (D,); same seed, same weights.

    Raises ConfigurationError if the model cannot take inputs of that shape.
    """
    if settings.name != "mlp" and len(shape) != 3:
        raise ConfigurationError(f"model {settings.name!r} takes images, but inputs have shape {shape}; use 'mlp'")
    if settings.name != "mlp" and min(shape[1:]) < 8:
        raise ConfigurationError(f"model {settings.name!r} needs images of at least 8x8 pixels, not {shape[1:]}")
    with seeded(seed, "init"):
        encoder = _encoder(settings, shape)
        with torch.no_grad():
            _, tokens, features = encoder.eval()(torch.zeros(1, *shape)).shape
        classifier = head(tokens, features, settings.hidden, classes, settings.dropout, settings.dropout_logits)
    return Model(encoder, classifier, tokens, features)


def _encoder(settings: ModelSettings, shape: tuple[int, ...]) -> nn.Sequential:
    if settings.name == "lenet5":
        return lenet5(shape, settings.features or 84)
    if settings.name == "residual":
        return residual(shape[0], settings.width or 16)
    return mlp(shape, settings.width or 64, settings.features or 32)
