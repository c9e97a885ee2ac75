"""Models by name, built from a configuration's `[model]` section, with weights from files."""

import dataclasses
import math
import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core import ConfigurationError, seeded
from ..core.aggregation import all_finite
from ..core.devices import FLOAT, check_memory
from ..core.errors import message_of, short_repr
from ..core.settings import MAX_COUNT, FieldError, frozen_settings, plain
from .custom_model import Make, as_model, forget, made, name_of, remember, shape_of
from .encoders import Model, Tokens, cnn, head, lenet5, linear, mlp, normed, residual
from .model_checks import check_calls, probe_output, sample

OWN = {
    "auto": {"width"},
    "lenet5": {"features"},
    "residual": {"width"},
    "cnn": {"width"},
    "normed": {"width"},
    "mlp": {"features", "width"},
    "encoder": {"adapter", "encoder", "frozen", "weights"},
    "own": {"factory", "weights"},
}
"""The fields of `ModelSettings` that only some models read, by model."""
HEAD = {"layer_norm", "hidden", "second", "norm", "dropout", "dropout_logits"}
"""Fields of the head, which custom models do not read."""
LACKS = {"own": HEAD, "linear": HEAD - {"dropout"}}
"""The fields of `HEAD` that a model does not read; a linear model, without encoder and hidden units, drops inputs."""
CONVOLUTIONS = {"residual": residual, "cnn": cnn, "normed": normed}
"""Encoders that are built from the channels of images and a width only."""
WIDE = 2048
"""Maximum number of features of a layer for which memory is not checked."""
KEPT = 4
"""Number of values in memory per trained parameter: the parameter, its gradient, and two moments of Adam."""


@frozen_settings
class ModelSettings:
    """An encoder and a classifier head."""

    name: Literal["auto", "lenet5", "residual", "cnn", "normed", "mlp", "linear", "encoder", "own"] = "auto"
    """auto: residual for images, mlp for other inputs. lenet5, residual, cnn and normed take images, mlp takes
    features; linear is logistic regression on all inputs; encoder is a custom encoder with a head, own is a custom
    model."""
    factory: str | Make | None = None
    """own: the name of the model's code, "package.module:name" or "file.py:name": a module, or a function without
    arguments or of an input's shape and the number of classes; in Python also the code itself."""
    encoder: str | Make | None = None
    """encoder: the name of the encoder's code, as for `factory`; a function with one argument gets only the shape."""
    weights: str | None = None
    """encoder, own: a file of initial weights (safetensors or torch's state_dict), in this folder or $CAVEAT_DATA."""
    frozen: bool = False
    """encoder: whether it is frozen. A frozen encoder is never sent and computes the features of a silo's data once."""
    adapter: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """encoder: units of a trained layer between the encoder and the head; none by default."""
    width: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """auto, residual, cnn, normed: channels of the first layers (16 by default; 128 in UEFL, 64 in FedBN); auto, mlp:
    hidden units (64 by default)."""
    features: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """lenet5 (84 by default) and mlp (32 by default): numbers per token between encoder and head."""
    layer_norm: bool = False
    """Whether the features of every token are normalized between encoder and head, without scale and shift, as FedPN
    and UEFL always do."""
    hidden: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 128
    """Hidden units of the classifier head; 0 is a linear head."""
    second: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Units of a second hidden layer of the head; none by default."""
    norm: bool = False
    """Whether the head's hidden units are batch normalized."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Probability that the head drops a hidden unit, or a linear model an input; MC dropout uses the same probability.
    0 disables dropout and MC dropout."""
    dropout_logits: bool = False
    """Whether dropout is also applied to the logits, as in UEFL's released code."""

    def __post_init__(self) -> None:
        usual = {field.name: field.default for field in dataclasses.fields(ModelSettings)}
        for name, code in (("own", self.factory), ("encoder", self.encoder)):
            if code is not None and self.name == usual["name"]:
                object.__setattr__(self, "name", name)  # the code implies the name
        for name in dict.fromkeys(field for fields in OWN.values() for field in fields) | dict.fromkeys(HEAD):
            value = getattr(self, name)
            foreign = name not in OWN.get(self.name, ()) if name not in HEAD else name in LACKS.get(self.name, ())
            if value != usual[name] and foreign:
                raise FieldError(f"{{key}} = {short_repr(value)} has no effect for model {self.name!r}", name)
        for name, needed in (("own", "factory"), ("encoder", "encoder")):
            if self.name == name and getattr(self, needed) is None:
                raise ConfigurationError(f"model {name!r} needs model.{needed}, the name of its code", "model.name")

    @property
    def described(self) -> dict[str, Any]:
        """Return the settings as plain values; code is represented by its name."""
        found = plain(self)
        return found | {key: name_of(found[key]) for key in ("factory", "encoder") if key in found}

    @property
    def text(self) -> str:
        """Return the settings in one line."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.described.items())})"

    @property
    def own(self) -> bool:
        """Whether custom code makes the model, or its encoder."""
        return self.factory is not None or self.encoder is not None

    @property
    def codes(self) -> list[str]:
        """The names of its custom code."""
        return [code for code in (self.factory, self.encoder) if isinstance(code, str)]


@frozen_settings
class PersonalModel(ModelSettings):
    """The architecture of local models, for methods in which every silo has its own."""

    silos: tuple[str, ...] = ()
    """Silos with this architecture. Silos that no entry names get the entries without names, in turn."""


def assign(personal: Sequence[PersonalModel], usual: ModelSettings, silos: Sequence[str]) -> dict[str, ModelSettings]:
    """Return the architecture of each silo's local model: the usual one unless another is configured. Raises
    ConfigurationError for a silo that does not exist or is named twice."""
    named = [(silo, model) for model in personal for silo in model.silos]
    for silo, _ in named:
        if silo not in silos:
            raise ConfigurationError(f"personal: there is no silo {silo!r}; silos: {', '.join(silos)}")
        if [other for other, _ in named].count(silo) > 1:
            raise ConfigurationError(f"personal: silo {silo!r} appears twice")
    turns = cycle([model for model in personal if not model.silos] or [usual])
    return {silo: dict(named).get(silo) or next(turns) for silo in silos}


def build_model(
    settings: ModelSettings, shape: tuple[int, ...], classes: int, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return an initialized model for inputs of `shape`, (C, H, W) or (D,), and a dtype; the same seed gives the same
    weights.

    It is a `Model`, unless it is linear or a custom module without encoder and head. Raises ConfigurationError if the
    model cannot take such inputs, or does not fit in memory.
    """
    if settings.name == "auto":
        settings = dataclasses.replace(settings, name="residual" if len(shape) == 3 else "mlp")
    if settings.name == "own":
        return _own(settings, shape, classes, seed, dtype)
    if settings.name == "encoder":
        return _with_encoder(settings, shape, classes, seed, dtype)
    if not dtype.is_floating_point:
        raise ConfigurationError(
            f"model {settings.name!r} takes float32 inputs, but inputs are {str(dtype).removeprefix('torch.')}; "
            "pass a custom model (model.factory)"
        )
    images = settings.name not in ("mlp", "linear")
    if images and len(shape) != 3:
        raise ConfigurationError(
            f"model {settings.name!r} takes images, but inputs have shape {shape}; use model.name = 'mlp' or 'auto'",
            "model.name",
        )
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
    x = sample(shape, dtype)
    _, tokens, features = probe_output(encoder, x, "model.encoder").shape
    with seeded(seed, "init"):
        if settings.adapter is not None:
            encoder = nn.Sequential(encoder, nn.Linear(features, settings.adapter), nn.GELU())
            features = settings.adapter
        return _behind(encoder, settings, tokens, features, classes, shape_of(x))


def _check_size(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigurationError for a model that does not fit in memory, without building it."""
    widest = max(settings.width or 0, settings.features or 0, settings.hidden, settings.second or 0)
    if widest <= WIDE and widest * math.prod(shape) <= WIDE**2:
        return  # small enough, and the check takes a second to import
    with torch.device("meta"):
        numbers = sum(each.numel() for each in _model(settings, shape, classes).parameters())
    check_memory(
        KEPT * FLOAT * numbers, f"training a model {settings.name!r} with {numbers:,} parameters takes", "model"
    )


def _model(settings: ModelSettings, shape: tuple[int, ...], classes: int) -> nn.Module:
    if settings.name == "linear":
        return linear(shape, classes, settings.dropout)
    encoder = _encoder(settings, shape)
    with torch.no_grad():
        _, tokens, features = encoder.eval()(torch.zeros(1, *shape)).shape
    return _behind(encoder, settings, tokens, features, classes, shape)


def _behind(
    encoder: nn.Module, settings: ModelSettings, tokens: int, features: int, classes: int, shape: tuple[int, ...] | None
) -> Model:
    """Return the encoder with the head that the settings describe."""
    classifier = head(
        tokens, features, settings.hidden, classes, settings.dropout, settings.dropout_logits, settings.norm,
        settings.second,
    )  # fmt: skip
    if settings.layer_norm:
        encoder = nn.Sequential(encoder, nn.LayerNorm(features, elementwise_affine=False))
    return Model(encoder, classifier, tokens, features, shape)


def _encoder(settings: ModelSettings, shape: tuple[int, ...]) -> nn.Sequential:
    if settings.name == "lenet5":
        return lenet5(shape, settings.features or 84)
    if settings.name in CONVOLUTIONS:
        return CONVOLUTIONS[settings.name](shape[0], settings.width or 16)
    return mlp(shape, settings.width or 64, settings.features or 32)


SAFETENSORS = ".safetensors"


def own_encoder(
    code: str | Make, weights: str | None, frozen: bool, shape: tuple[int, ...], dtype: torch.dtype, classes: int,
    seed: int,
) -> nn.Sequential:  # fmt: skip
    """Return a custom encoder from inputs to tokens (N, T, D). Raises ConfigurationError for code that returns no
    encoder, and for weights of another module."""
    encoder = made(code, shape, dtype, classes, seed, "model.encoder")
    if weights is not None:
        begin_with(encoder, weights)
    if frozen:
        encoder.requires_grad_(False)
        forget(encoder)  # these tensors never change
    x = sample(shape, dtype)
    features = probe_output(encoder, x, "model.encoder")
    if features.ndim not in (2, 3, 4) or features.dtype != torch.float32:
        raise ConfigurationError(
            f"{{key}}: {type(encoder).__name__} returns {tuple(features.shape)} for {len(x)} inputs, expected features "
            "(N, D), feature maps (N, D, H, W) or tokens (N, T, D) in float32",
            "model.encoder",
        )
    check_calls(encoder, shape, dtype, "model.encoder")
    return nn.Sequential(encoder) if features.ndim == 3 else nn.Sequential(encoder, Tokens())


def begin_with(module: nn.Module, file: str) -> None:
    """Load weights from a file into a module. Raises ConfigurationError for an invalid file, or the weights of another
    module."""
    tensors = _read(file)
    wanted = module.state_dict()
    lacking, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if lacking or unknown:
        about = f"lacks {lacking[0]!r}" if lacking else f"has {unknown[0]!r}, which the module does not have"
        raise ConfigurationError(f"{{key}} = {file!r} {about}: these are weights of another module", "model.weights")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ConfigurationError(
                f"{{key}} = {file!r}: {name!r} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}",
                "model.weights",
            )
        if not all_finite(tensor) and not torch.equal(tensor, wanted[name]):
            raise ConfigurationError(f"{{key}} = {file!r} has NaN or infinity in {name!r}", "model.weights")
    module.load_state_dict(tensors)
    remember(module)


def _read(file: str) -> dict[str, Tensor]:
    """Read the tensors of a file in the format of safetensors or torch, and nothing else in the file."""
    places = [Path(file).expanduser(), *([Path(data) / file] if (data := os.environ.get("CAVEAT_DATA")) else [])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigurationError(f"{{key}} = {file!r}: no such file, here or in $CAVEAT_DATA", "model.weights")
    try:
        if path.suffix == SAFETENSORS:
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{{key}} = {file!r} cannot be read: {message_of(error)}", "model.weights") from None
    except Exception as error:  # torch raises errors of pickle, which this project does not import
        raise ConfigurationError(
            f"{{key}} = {file!r} contains more than tensors, or is damaged ({type(error).__name__}); none of its code "
            "was run: save only the state_dict",
            "model.weights",
        ) from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise ConfigurationError(
            f"{{key}} = {file!r} does not contain a state_dict (tensors by name): save only the state_dict",
            "model.weights",
        )
    return dict(found)
