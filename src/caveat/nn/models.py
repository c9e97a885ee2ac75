"""Models by name: what a configuration's `[model]` section builds."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import cycle
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ..core import ConfigurationError, seeded
from ..core.devices import FLOAT, check_memory
from ..core.errors import short_repr
from ..core.settings import MAX_COUNT, FieldError, frozen_settings, plain
from .custom_model import Make, as_model, made, name_of
from .encoders import Model, cnn, head, lenet5, linear, mlp, normed, residual
from .pretrained import begin_with, own_encoder
from .probe import probe_output, sample

OWN = {
    "lenet5": {"features"},
    "residual": {"width"},
    "cnn": {"width"},
    "normed": {"width"},
    "mlp": {"features", "width"},
    "encoder": {"adapter", "encoder", "frozen", "weights"},
    "own": {"factory", "weights"},
}
"""The fields of `ModelSettings` that not all models read, by the models that do."""
HEAD = {"layer_norm", "hidden", "second", "norm", "dropout", "dropout_logits"}
"""Fields of what is behind the encoder, which a model of one's own has already."""
LACKS = {"own": HEAD, "linear": HEAD - {"dropout"}}
"""The fields of `HEAD` that a model does not read; a linear one, without encoder and hidden units, drops inputs."""
CONVOLUTIONS = {"residual": residual, "cnn": cnn, "normed": normed}
"""The encoders that are built from the channels of images and a width alone."""
WIDE = 2048
"""Features of a layer up to which nobody asks how much memory a model takes."""
KEPT = 4
"""Numbers in memory for each parameter while it is trained: itself, its gradient, and two moments of Adam."""


@frozen_settings
class ModelSettings:
    """An encoder and a classifier head."""

    name: Literal["lenet5", "residual", "cnn", "normed", "mlp", "linear", "encoder", "own"] = "residual"
    """lenet5, residual, cnn and normed take images, mlp takes features; linear is logistic regression on all inputs;
    encoder is one's own encoder with a head behind it, own is a whole model of one's own."""
    factory: str | Make | None = None
    """own: the code that makes the model, "package.module:name" or "file.py:name", a function of nothing or of an
    input's shape and the number of classes; in Python also the function, or a module."""
    encoder: str | Make | None = None
    """encoder: the code that makes the encoder, likewise; a function is given the shape alone if it asks for it."""
    weights: str | None = None
    """encoder, own: a file of weights that it begins with, safetensors or a state_dict of torch, here or in
    $CAVEAT_DATA."""
    frozen: bool = False
    """encoder: freeze it. A frozen encoder is never sent, and its features of a silo's data are computed once."""
    adapter: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """encoder: units of a trained layer between the encoder and the head; none by default."""
    width: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """residual, cnn, normed: channels of the first layers (16 by default; 128 in UEFL, 64 in FedBN); mlp: hidden units
    (64 by default)."""
    features: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """lenet5 (84 by default) and mlp (32 by default): numbers per token between encoder and head."""
    layer_norm: bool = False
    """Normalise the features of every token, between encoder and head, without scale and shift, as FedPN and UEFL do by
    themselves."""
    hidden: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 128
    """Hidden units of the classifier head; 0 is a linear head."""
    second: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Units of a second hidden layer of the head; by default it has one."""
    norm: bool = False
    """Normalise the head's hidden units over the batch."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Probability that the head drops a hidden unit, a linear model an input; MC dropout samples with it. 0 switches
    both off."""
    dropout_logits: bool = False
    """Apply dropout to the logits too, as UEFL's released code does."""

    def __post_init__(self) -> None:
        usual = {field.name: field.default for field in dataclasses.fields(ModelSettings)}
        for name, code in (("own", self.factory), ("encoder", self.encoder)):
            if code is not None and self.name == usual["name"]:
                object.__setattr__(self, "name", name)  # the code says enough; frozen for everyone else
        for name in dict.fromkeys(field for fields in OWN.values() for field in fields) | dict.fromkeys(HEAD):
            value = getattr(self, name)
            foreign = name not in OWN.get(self.name, ()) if name not in HEAD else name in LACKS.get(self.name, ())
            if value != usual[name] and foreign:
                raise FieldError(f"{{key}} = {short_repr(value)} has no meaning for model {self.name!r}", name)
        for name, needed in (("own", "factory"), ("encoder", "encoder")):
            if self.name == name and getattr(self, needed) is None:
                raise ConfigurationError(f"model {name!r} needs model.{needed}, the code that makes it", "model.name")

    @property
    def described(self) -> dict[str, Any]:
        """The settings as plain values; code is its name."""
        found = plain(self)
        return found | {key: name_of(found[key]) for key in ("factory", "encoder") if key in found}

    @property
    def text(self) -> str:
        """The settings in a line."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.described.items())})"

    @property
    def own(self) -> bool:
        """Whether code of one's own makes the model, or its encoder."""
        return self.factory is not None or self.encoder is not None

    @property
    def codes(self) -> list[str]:
        """The names of code of one's own in it."""
        return [code for code in (self.factory, self.encoder) if isinstance(code, str)]


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


def build_model(
    settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A freshly initialised model for inputs of `shape`, (C, H, W) or (D,), and a type; same seed, same weights.

    A `Model`, but for a linear one and a module of one's own that has no encoder and head. Raises ConfigurationError if
    the model cannot take such inputs, or memory cannot take the model.
    """
    if settings.name == "own":
        return _own(settings, shape, classes, seed, dtype)
    if settings.name == "encoder":
        return _with_encoder(settings, shape, classes, seed, dtype)
    if not dtype.is_floating_point:
        raise ConfigurationError(
            f"model {settings.name!r} takes numbers, but inputs are {str(dtype).removeprefix('torch.')}; give a model "
            "of your own (model.factory)"
        )
    images = settings.name not in ("mlp", "linear")
    if images and len(shape) != 3:
        raise ConfigurationError(f"model {settings.name!r} takes images, but inputs have shape {shape}; use 'mlp'")
    if images and min(shape[1:]) < 8:
        raise ConfigurationError(f"model {settings.name!r} needs images of at least 8x8 pixels, not {shape[1:]}")
    _check_size(settings, shape, classes)
    with seeded(seed, "init"):
        return _model(settings, shape, classes)


def _own(settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int, dtype: torch.dtype) -> nn.Module:
    module = made("" if settings.factory is None else settings.factory, shape, dtype, classes, seed, "model.factory")
    if settings.weights is not None:
        begin_with(module, settings.weights)
    return as_model(module, shape, dtype, classes, "model.factory")


def _with_encoder(
    settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int, dtype: torch.dtype
) -> Model:
    code = "" if settings.encoder is None else settings.encoder
    encoder = own_encoder(code, settings.weights, settings.frozen, shape, dtype, classes, seed)
    _, tokens, features = probe_output(encoder, sample(shape, dtype), "model.encoder").shape
    with seeded(seed, "init"):
        if settings.adapter is not None:
            encoder = nn.Sequential(encoder, nn.Linear(features, settings.adapter), nn.GELU())
            features = settings.adapter
        return _behind(encoder, settings, tokens, features, classes)


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


def _model(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> nn.Module:
    if settings.name == "linear":
        return linear(shape, classes, settings.dropout)
    encoder = _encoder(settings, shape)
    with torch.no_grad():
        _, tokens, features = encoder.eval()(torch.zeros(1, *shape)).shape
    return _behind(encoder, settings, tokens, features, classes)


def _behind(encoder: nn.Module, settings: ModelSettings, tokens: int, features: int, classes: int) -> Model:
    """The encoder with what the settings put behind it."""
    classifier = head(
        tokens, features, settings.hidden, classes, settings.dropout, settings.dropout_logits, settings.norm,
        settings.second,
    )  # fmt: skip
    if settings.layer_norm:
        encoder = nn.Sequential(encoder, nn.LayerNorm(features, elementwise_affine=False))
    return Model(encoder, classifier, tokens, features)


def _encoder(settings: ModelSettings, shape: tuple[int, ...]) -> nn.Sequential:
    if settings.name == "lenet5":
        return lenet5(shape, settings.features or 84)
    if settings.name in CONVOLUTIONS:
        return CONVOLUTIONS[settings.name](shape[0], settings.width or 16)
    return mlp(shape, settings.width or 64, settings.features or 32)
