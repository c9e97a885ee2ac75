"""Models by name: what a configuration's `[model]` section builds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from ..core import ConfigurationError, seeded
from ..core.memory import FLOAT, check_memory
from ..core.settings import MANY, frozen_settings
from .encoders import Model, cnn, head, lenet5, mlp, normed, residual

OWN = {
    "lenet5": {"features"},
    "residual": {"width"},
    "cnn": {"width"},
    "normed": {"width"},
    "mlp": {"features", "width"},
}
"""The fields of `ModelSettings` that not all models read, by the models that do."""
CONVOLUTIONS = {"residual": residual, "cnn": cnn, "normed": normed}
"""The encoders that are built from the channels of images and a width alone."""
WIDE = 2048
"""Features of a layer up to which nobody asks how much memory a model takes."""
KEPT = 4
"""Numbers in memory for each parameter while it is trained: itself, its gradient, and two moments of Adam."""


@frozen_settings
class ModelSettings:
    """An encoder and a classifier head."""

    name: Literal["lenet5", "residual", "cnn", "normed", "mlp"] = "residual"
    """lenet5, residual, cnn and normed take images, mlp takes anything."""
    width: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """residual, cnn, normed: channels of the first layers (16 by default; 128 in UEFL, 64 in FedBN); mlp: hidden units
    (64 by default)."""
    features: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """lenet5 (84 by default) and mlp (32 by default): numbers per token between encoder and head."""
    hidden: Annotated[int, Field(gt=0, le=MANY)] = 128
    """Hidden units of the classifier head."""
    second: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """Units of a second hidden layer of the head; by default it has one."""
    norm: bool = False
    """Normalise the head's hidden units over the batch."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Probability that the head drops a hidden unit; MC dropout samples with it. 0 switches both off."""
    dropout_logits: bool = False
    """Also drop logits, as UEFL's released code does."""

    def __post_init__(self) -> None:
        for name in ("width", "features"):
            if getattr(self, name) is not None and name not in OWN[self.name]:
                raise ConfigurationError(
                    f"{{key}} = {getattr(self, name)} has no meaning for model {self.name!r}", f"model.{name}"
                )


@frozen_settings
class PersonalModel(ModelSettings):
    """The architecture of silos' own models, for methods in which every silo has one."""

    silos: tuple[str, ...] = ()
    """Whose it is; the silos that no entry names get the entries that name none, in turn."""


def assign(personal: Sequence[PersonalModel], usual: ModelSettings, silos: Sequence[str]) -> dict[str, ModelSettings]:
    """The architecture of each silo's own model: the usual one where nothing else is said.

    Raises ConfigurationError for a silo that does not exist or is named twice.
    """
    named = [(silo, model) for model in personal for silo in model.silos]
    for silo, _ in named:
        if silo not in silos:
            raise ConfigurationError(f"personal: no such silo {silo!r} (there are: {', '.join(silos)})")
        if [other for other, _ in named].count(silo) > 1:
            raise ConfigurationError(f"personal: silo {silo!r} is named twice")
    turns = cycle([model for model in personal if not model.silos] or [usual])
    return {silo: dict(named).get(silo) or next(turns) for silo in silos}


def build_model(settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int) -> Model:
    """A freshly initialised model for inputs of `shape`, (C, H, W) or (D,); same seed, same weights.

    Raises ConfigurationError if the model cannot take inputs of that shape, or memory cannot take the model.
    """
    if settings.name != "mlp" and len(shape) != 3:
        raise ConfigurationError(f"model {settings.name!r} takes images, but inputs have shape {shape}; use 'mlp'")
    if settings.name != "mlp" and min(shape[1:]) < 8:
        raise ConfigurationError(f"model {settings.name!r} needs images of at least 8x8 pixels, not {shape[1:]}")
    _check_size(settings, shape, classes)
    with seeded(seed, "init"):
        return _model(settings, shape, classes)


def _check_size(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> None:
    """Raises ConfigurationError for a model that memory cannot take, without making it."""
    widest = max(settings.width or 0, settings.features or 0, settings.hidden, settings.second or 0)
    if widest <= WIDE and widest * math.prod(shape) <= WIDE**2:
        return  # any machine can take it, and what counts otherwise takes a second to import
    with torch.device("meta"):
        numbers = sum(each.numel() for each in _model(settings, shape, classes).parameters())
    check_memory(
        KEPT * FLOAT * numbers, f"a model {settings.name!r} of {numbers:,} parameters takes to be trained", "model"
    )


def _model(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> Model:
    encoder = _encoder(settings, shape)
    with torch.no_grad():
        _, tokens, features = encoder.eval()(torch.zeros(1, *shape)).shape
    classifier = head(
        tokens, features, settings.hidden, classes, settings.dropout, settings.dropout_logits, settings.norm,
        settings.second,
    )  # fmt: skip
    return Model(encoder, classifier, tokens, features)


def _encoder(settings: ModelSettings, shape: tuple[int, ...]) -> nn.Sequential:
    if settings.name == "lenet5":
        return lenet5(shape, settings.features or 84)
    if settings.name in CONVOLUTIONS:
        return CONVOLUTIONS[settings.name](shape[0], settings.width or 16)
    return mlp(shape, settings.width or 64, settings.features or 32)
