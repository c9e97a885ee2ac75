"""The initial model of a run: weights of another run, read and loaded into the layers that fit."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..core import ConfigurationError, DataError, RunError, Tensors
from ..files import manifest_of, read_payload
from ..nn.frozen import FrozenEncoder
from ..nn.model_checks import Said
from ..training.modules import tensors_of

MODEL = "model/model.safetensors"


def read_model(folder: Path) -> Tensors:
    """Read the global model of a finished run. Raises ConfigurationError if the folder has none."""
    if not (folder / "summary.json").exists() or not (folder / MODEL).exists():
        raise ConfigurationError(f"{{key}} = {str(folder)!r} is not a finished run", "init_from")
    try:
        manifest_of(folder).check(MODEL)
        found = read_payload(folder / MODEL)
    except (DataError, RunError) as error:
        raise ConfigurationError(f"{{key}} = {str(folder)!r}: {error}", "init_from") from None
    return found.get("model", {})


def fits(module: nn.Module, tensors: Tensors) -> bool:
    """Return whether a module has a tensor of the same name and shape for each of `tensors`."""
    there = tensors_of(module)
    return bool(tensors) and all(n in there and there[n].shape == t.shape for n, t in tensors.items())


def initialized(module: nn.Module, tensors: Tensors) -> nn.Module:
    """Copy `tensors` to the module, and return it. Its other tensors, which the other run kept at its silos, do not
    change."""
    there = tensors_of(module)
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module


class MadeModel(NamedTuple):
    """An initial model."""

    frozen: FrozenEncoder | None
    behind: nn.Module
    """The model, or the part after its frozen encoder."""
    digest: str
    """Digest of all tensors of a custom model; else empty."""
    untaught: str
    """The digest without the bits of trainable tensors."""
    says: tuple[Said, ...]
    """Outputs of a custom model for fixed inputs (`caveat.nn.model_checks`)."""
