"""Encoders of one's own, pretrained perhaps, and the files that their weights come from."""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core import ConfigurationError
from ..core.aggregation import all_finite
from ..core.errors import message_of
from .custom_model import Make, forget, made, remember
from .encoders import Tokens
from .probe import check_calls, probe_output, sample

SAFETENSORS = ".safetensors"


def own_encoder(
    code: str | Make, weights: str | None, frozen: bool, shape: tuple[int, ...], dtype: torch.dtype, classes: int,
    seed: int,
) -> nn.Sequential:  # fmt: skip
    """An encoder from inputs to tokens (N, T, D), by code of one's own.

    Raises ConfigurationError for code that gives none, and for weights that are not its own.
    """
    encoder = made(code, shape, dtype, classes, seed, "model.encoder")
    if weights is not None:
        begin_with(encoder, weights)
    if frozen:
        encoder.requires_grad_(False)
        forget(encoder)  # copies of what never changes
    x = sample(shape, dtype)
    features = probe_output(encoder, x, "model.encoder")
    if features.ndim not in (2, 3, 4) or features.dtype != torch.float32:
        raise ConfigurationError(
            f"{{key}}: {type(encoder).__name__} gives {tuple(features.shape)} for {len(x)} inputs, expected features "
            "(N, D), feature maps (N, D, H, W) or tokens (N, T, D) in float32",
            "model.encoder",
        )
    check_calls(encoder, shape, dtype, "model.encoder")
    return nn.Sequential(encoder) if features.ndim == 3 else nn.Sequential(encoder, Tokens())


def begin_with(module: nn.Module, file: str) -> None:
    """Put the weights of a file into a module. Raises ConfigurationError for a file that is none, or of another."""
    tensors = _read(file)
    wanted = module.state_dict()
    lacking, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if lacking or unknown:
        about = f"lacks {lacking[0]!r}" if lacking else f"has {unknown[0]!r}, which the module has not"
        raise ConfigurationError(f"{{key}} = {file!r} {about}: these are weights of another module", "model.weights")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ConfigurationError(
                f"{{key}} = {file!r}: {name!r} is {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}",
                "model.weights",
            )
        if not all_finite(tensor) and not torch.equal(tensor, wanted[name]):
            raise ConfigurationError(f"{{key}} = {file!r} has NaN or infinity in {name!r}", "model.weights")
    module.load_state_dict(tensors)
    remember(module)


def _read(file: str) -> dict[str, Tensor]:
    """The tensors of a file, safetensors or torch's own, of which nothing but tensors is read."""
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
    except Exception as error:  # torch raises the errors of pickle, which this project does not import
        raise ConfigurationError(
            f"{{key}} = {file!r} holds more than tensors, or is damaged ({type(error).__name__}); nothing of it was "
            "run: save the state_dict alone",
            "model.weights",
        ) from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise ConfigurationError(
            f"{{key}} = {file!r} holds something else than a state_dict, which is tensors by name: save that alone",
            "model.weights",
        )
    return dict(found)
