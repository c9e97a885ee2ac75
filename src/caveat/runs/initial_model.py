"""The model of a finished run, with which another run begins (`init_from`)."""

from pathlib import Path

import torch
from torch import nn

from ..core import ConfigurationError, DataError, RunError, Tensors
from ..files.reading import manifest_of
from ..files.tensors import read_payload
from ..training.modules import tensors_of

MODEL = "model/model.safetensors"


def read_model(folder: Path) -> Tensors:
    """The federation's model of a finished run. Raises ConfigurationError if the folder holds none."""
    if not (folder / "summary.json").exists() or not (folder / MODEL).exists():
        raise ConfigurationError(f"{{key}} = {str(folder)!r} is not a finished run", "init_from")
    try:
        manifest_of(folder).check(MODEL)
        found = read_payload(folder / MODEL)
    except (DataError, RunError) as error:
        raise ConfigurationError(f"{{key}} = {str(folder)!r}: {error}", "init_from") from None
    return found.get("model", {})


def fits(module: nn.Module, tensors: Tensors) -> bool:
    """Whether a module has tensors of all these names and shapes."""
    there = tensors_of(module)
    return bool(tensors) and all(n in there and there[n].shape == t.shape for n, t in tensors.items())


def initialised(module: nn.Module, tensors: Tensors) -> nn.Module:
    """A module with these tensors in it; others, which the other run kept at its silos, stay as they are."""
    there = tensors_of(module)
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module
