"""Probes: fixed inputs whose outputs represent what a model computes.

Code that computes something else returns different outputs. Models are refused if their logits for an input also depend
on other inputs of the batch, on earlier calls, or on random numbers other than dropout. Token ids that a model cannot
look up are refused, too.
"""

import math
import warnings
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..core import ConfigurationError, DataError, seeded
from ..core.errors import message_of
from .dropout import DROPS, DropoutFunctions, reads_training

Said = tuple[float | None, ...]
"""Outputs of a model; None for one that is not finite."""
MOST = 16
"""Maximum number of outputs stored per input; more logits are reduced to this number of weighted sums."""
CLOSE = 1e-3
"""Tolerance for outputs of other machines, which differ in their last bits, relative to the largest output."""

ROWS = 4
"""Number of inputs used to test calls of a module."""
ROUNDING = 1e-5
"""Tolerance for float32 logits, relative to the largest one, which counts as at least 1."""


def name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sample(shape: tuple[int, ...], dtype: torch.dtype, rows: int = 2) -> Tensor:
    """Return (rows, *shape) inputs to test a module with: numbers from N(0, 1), or ids of 1."""
    with seeded("contract"):
        return torch.randn(rows, *shape) if dtype.is_floating_point else torch.ones(rows, *shape, dtype=dtype)


@torch.no_grad()
def probe_output(module: nn.Module, x: Tensor, key: str) -> Tensor:
    """Return a module's outputs for inputs in evaluation. Raises ConfigurationError if it cannot take them."""
    try:
        found: Any = module.eval()(x)
    except Exception as error:
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} cannot take inputs (N, {', '.join(map(str, x.shape[1:]))}) of "
            f"{name_of_dtype(x.dtype)}: {message_of(error)}",
            key,
        ) from error
    if not isinstance(found, Tensor):
        raise ConfigurationError(
            f"{{key}}: {type(module).__name__} returns a {type(found).__name__}, not a tensor", key
        )
    return found


def check_calls(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, key: str) -> None:
    """Raise ConfigurationError for a module whose outputs depend on more than its inputs (N, *shape) and weights.

    In evaluation, an input's outputs must not depend on the rest of its batch, on earlier calls or on random numbers.
    In training, the module must return a tensor of the same shape, with gradients, and change nothing except buffers.
    Parts that do more in training than drop units are marked (`DROPS`), and buffers that initially contain NaN or
    infinity, such as the mask of attention, are constants that are never sent.
    """
    x, wrong = _different(shape, dtype), ""
    # Buffers that initially contain NaN or infinity are excluded from the state.
    constants = []
    for path, part in module.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if not buffer.isfinite().all():
                part._non_persistent_buffers_set.add(name)
                constants.append(f"{path}.{name}".lstrip("."))
    for precision in (torch.float32, torch.float64):  # rounding differences in float32 vanish in float64
        copy = _copied(module, x).to(precision)
        y = x.to(precision) if x.is_floating_point() else x
        try:
            with warnings.catch_warnings(action="ignore"):  # for example about a batch of one
                wrong = _wrong(copy, y, constants)
        except Exception as error:  # in float64, code that creates float32 tensors fails
            wrong = wrong or f"does not take {ROWS} inputs: {message_of(error)}"
            break
        if not wrong:
            return _mark(module, copy, y)
    raise ConfigurationError(f"{{key}}: {type(module).__name__} {wrong}", key)


def _copied(module: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy in evaluation mode, perturbed (`_waved`) if its outputs are then still finite."""
    try:
        with torch.no_grad():
            if _asked(waved := _waved(module), x).isfinite().all():
                return waved
    except Exception:  # code that accepts only some weights
        pass
    return deepcopy(module).eval()


def _different(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return (ROWS, *shape) distinct inputs: numbers of several magnitudes, or ids 0 and 1."""
    x = sample(shape, dtype, ROWS)
    if x.is_floating_point():
        return x * torch.tensor([1.0, 4.0, 0.2, 20.0]).reshape(-1, *[1] * len(shape))
    place, length = torch.arange(x[0].numel()), x[0].numel()
    ids = torch.stack([place <= (length - 1) * row // (ROWS - 1) for row in range(ROWS)])
    ids[0, 0] = length > 1
    return ids.reshape(x.shape).to(dtype)


@torch.no_grad()
def _waved(model: nn.Module) -> nn.Module:
    """Return a copy with a cosine added to all parameters, because a layer initialized to zeros hides other layers."""
    copy = deepcopy(model).eval()
    for parameter in copy.parameters():
        inputs = parameter[0].numel() if parameter.ndim > 1 and len(parameter) else 25
        wave = torch.arange(parameter.numel(), dtype=torch.float64).cos().reshape(parameter.shape)
        parameter.add_((wave / (2 * math.sqrt(max(inputs, 1)))).to(parameter))
    return copy


def _asked(model: nn.Module, x: Tensor, seed: int = 0) -> Any:
    with seeded("probe", seed):
        return model(x.clone())


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    size = max(1.0, float(one.detach().abs().nan_to_num(0, 0).amax())) if one.numel() else 1.0
    return torch.allclose(one, other, rtol=0, atol=ROUNDING * size, equal_nan=True)


def _wrong(model: nn.Module, x: Tensor, constants: Sequence[str]) -> str:
    """Return what is wrong with calls of a module, and the remedy; "" if nothing is wrong."""
    with torch.no_grad():
        whole = _asked(model, x)
        _asked(model, x[1:3])
        if not _close(whole, _asked(model, x, seed=1)):
            _asked(model, x[1:3])
            if not _close(whole, _asked(model, x)):
                return f"returns other outputs for the same inputs when it is called again: {KEEPS}"
            return (
                "draws random numbers in evaluation, so predictions are not reproducible: draw them in training "
                "only, and call torch.nn.functional.dropout with training=self.training, so predictions can sample"
            )
        try:
            alone = torch.cat([_asked(model, row[None]) for row in x])
        except Exception as error:
            return f"does not take a batch of one input: {message_of(error)}; {_batched(model)}"
        if not _close(whole, alone) or not _close(whole[2:], _asked(model, x[2:])):
            return f"returns other outputs for an input if the batch has other inputs: {_batched(model)}"
    if not any(p.requires_grad for p in model.parameters()):
        return ""  # frozen parts are never used in training mode
    return _wrong_in_training(deepcopy(model).train(), x, whole, constants)


KEEPS = "store nothing between calls except buffers (register_buffer) that training changes, and no generator"


def _batched(model: nn.Module) -> str:
    plain = [type(m).__name__ for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is None]
    batch = next((name for name in plain if "BatchNorm" in name), "")
    if batch:
        return f"set track_running_stats=True in {batch}, or use GroupNorm or LayerNorm"
    return "in evaluation, compute each input independently, with statistics that training stored in buffers"


def _wrong_in_training(model: nn.Module, x: Tensor, whole: Tensor, constants: Sequence[str]) -> str:
    before = deepcopy(model.state_dict())
    fixed = {name: model.get_buffer(name).clone() for name in constants}
    try:
        found = _asked(model, x)
    except Exception as error:
        return f"fails in training: {message_of(error)}"
    if not isinstance(found, Tensor) or found.shape != whole.shape or found.dtype != whole.dtype:
        gives = str(tuple(found.shape)) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        return (
            f"returns {gives} in training, expected a tensor {tuple(whole.shape)} as in evaluation: disable auxiliary "
            "outputs (in torchvision's models: aux_logits=False)"
        )
    if not found.requires_grad:
        return (
            "returns outputs without gradients in training, so nothing can be trained: remove detach(), "
            "torch.no_grad() and torch.inference_mode()"
        )
    with torch.no_grad():
        _asked(model, x.flip(0))
        for name, buffer in fixed.items():
            if not _close(buffer, model.get_buffer(name)):
                return f"changes {name!r} in training, which initially has NaN or infinity: start with a large number"
        model.load_state_dict(before)
        differs = not _close(found, _asked(model, x))
        model.load_state_dict(before)
        if differs or not _close(whole, _asked(model.eval(), x)):
            return f"returns other outputs after a training step is undone: {KEEPS}"
    return ""


@torch.no_grad()
def _mark(module: nn.Module, copy: nn.Module, x: Tensor) -> None:
    """Mark the parts that do more in training than drop units, with whether they call functions of dropout. All parts
    of a class are marked, because they have the same code."""
    kinds: dict[type, list[str]] = {}
    for path, part in copy.named_modules():
        if reads_training(part):
            kinds.setdefault(type(part), []).append(path)
    for paths in kinds.values():
        if not _only_drops(copy, paths, x):
            with DropoutFunctions(on=False) as functions:
                _asked(copy, x)
            for path in paths:
                setattr(module.get_submodule(path), DROPS, functions.called)


def _only_drops(model: nn.Module, paths: Sequence[str], x: Tensor) -> bool:
    """Return whether parts compute the same in training, without drops, as in evaluation, and change nothing."""
    copy = deepcopy(model)
    for path in paths:
        copy.get_submodule(path).training = True
    before = _held(copy)
    try:
        with DropoutFunctions(on=False):
            found = _asked(copy, x)
    except Exception:
        return False
    after = _held(copy)
    return _close(_asked(model, x), found) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )


def _held(model: nn.Module) -> list[object]:
    """Return copies of a model's buffers, and the numbers that its parts have as attributes."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    return buffers + [{k: v for k, v in vars(p).items() if isinstance(v, int | float)} for p in model.modules()]


def said_of(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Said, Said]:
    """Return a model's outputs for fixed inputs in evaluation, then in training; empty if the model fails or draws at
    random. They are computed by a perturbed copy (`_waved`)."""
    x = sample(shape, dtype)
    more = 4 * x if x.is_floating_point() else (torch.arange(x.numel()) % 2).reshape(x.shape).to(dtype)
    x = torch.cat([x, more])
    return _said(model, x, False), _said(model, x, True)


def alike(one: Sequence[Said], other: Sequence[Said]) -> bool:
    """Return whether both are outputs of the same models, up to differences between machines."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Said, other: Said) -> bool:
    if len(one) != len(other):
        return False
    near = CLOSE * max((abs(value) for value in (*one, *other) if value is not None), default=0.0)
    pairs = zip(one, other, strict=True)
    return all(a == b or (a is not None and b is not None and abs(a - b) <= near) for a, b in pairs)


def _said(model: nn.Module, x: Tensor, training: bool) -> Said:
    once, again = (_once(model, x, training, seed) for seed in (0, 1))
    return once if _same(once, again) else ()


@torch.no_grad()
def _once(model: nn.Module, x: Tensor, training: bool, seed: int) -> Said:
    copy = _waved(model).train(training)
    try:
        logits = _asked(copy, x, seed).double()
    except Exception:  # custom code may raise anything; the initial model has been tested already
        return ()
    if (classes := logits.shape[-1]) > MOST:
        logits = logits @ torch.arange(classes * MOST, dtype=torch.float64).cos().reshape(classes, MOST)
    return tuple(float(f"{value:.6g}") if math.isfinite(value) else None for value in logits.flatten().tolist())


@torch.no_grad()
def check_ids(module: nn.Module, x: Tensor, where: str) -> None:
    """Raise DataError for inputs (N, T) int64, N > 0, with an id that the module cannot look up."""
    if (lowest := int(x.min())) < 0:
        raise DataError(f"{where}: token id {lowest}, expected ids of at least 0")
    highest = x[int(x.flatten(1).amax(1).argmax())]
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    hooks = [part.register_forward_pre_hook(lambda part, given: _look_up(part, given[0], where)) for part in embeddings]
    try:
        with seeded("ids"):
            module.eval()(highest[None])
    except (IndexError, RuntimeError) as error:  # a custom table, or one_hot
        raise DataError(f"{where}: the model cannot look up the id {int(highest.max())}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _look_up(embedding: nn.Module, ids: Tensor, where: str) -> None:
    """Raise DataError unless an embedding has a row for all ids."""
    known = int(embedding.num_embeddings)  # type: ignore[arg-type]
    if ids.numel() and int(ids.max()) >= known:
        raise DataError(
            f"{where}: token id {int(ids.max())}, but the model knows ids from 0 to {known - 1}; give its "
            f"nn.{type(embedding).__name__} a row for every id, or map rare tokens to one id"
        )
