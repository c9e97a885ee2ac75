"""Features of an input and of each stage of the encoder, a few dozen numbers each, and the computation of the last
layer.

A stage is a part of the encoder that does more than a linear map: an activation, a pooling, a residual block, or the
encoder's output. Feature maps are summarized by mean and standard deviation of every channel, tokens by mean and
standard deviation of every feature; vectors are used unchanged. Features are recorded while a method answers, so no
pass runs twice.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd
from torch.overrides import wrap_torch_function

from ..core import ConfigurationError, seeded
from ..core.devices import brought
from .dropout import flat, has_dropout
from .encoders import Tokens

NUMBERS = 128
"""Maximum number of features of a stage; more are reduced to this number of fixed random projections."""
STAGES = 4
"""Maximum number of recorded stages, evenly spaced over the depth; the encoder's output is always one of them."""
PART = 200
"""Number of inputs that are processed at once, so that their features stay in a processor's cache."""
CELLS = 4
"""Rows and columns of the grid of cells whose means describe where an image is bright."""
SCALES = 4
"""Maximum number of scales at which neighboring pixels are compared, each half as fine as the previous one."""
QUIET = 1e-3
"""Lower bound on deviations before their logarithm is taken, in units of normalized pixels or of the series.
"""
SHAPES = (nn.Identity, nn.Flatten, nn.Dropout, Tokens)
LINEAR = (*SHAPES, nn.Linear, nn.LayerNorm, _ConvNd, _NormBase)
POOLING = (_MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd)


class Numbers(nn.Module):
    """A stage that has features of the original input in addition to its output."""

    def numbers(self, x: Tensor) -> dict[str, Tensor]:
        """Return (N, d) features of inputs (N, ...), by name."""
        raise NotImplementedError


class Repeated(nn.Module):
    """A stage whose parts run several times per input, so only its output has features."""


def numbers_of(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the features of inputs of a module, by name: from a stage with `Numbers`, or else from the inputs."""
    stage = next((part for part in module.modules() if isinstance(part, Numbers)), None)
    return input_numbers(x) if stage is None else stage.numbers(x)


def input_numbers(x: Tensor) -> dict[str, Tensor]:
    """Return (N, d) features of inputs (N, ...), by name.

    For images (N, C, H, W): the "layout", means of 4x4 cells; the "texture", how much pixels differ from their
    neighbors at four scales; and the "colour", the distribution of each channel's values, and how much channels differ.
    For ids (N, T), see `token_numbers`, and for series (N, T, C), `series_numbers`. All other inputs have "values".
    """
    if x.is_floating_point() and x.ndim not in (3, 4):
        return {"values": _narrow(x.flatten(1))}
    numbers = _image_numbers if x.ndim == 4 else series_numbers if x.is_floating_point() else token_numbers
    parts = [numbers(part) for part in torch.split(x, PART)]
    return {name: _narrow(torch.cat([part[name] for part in parts])) for name in parts[0]}


def _image_numbers(x: Tensor) -> dict[str, Tensor]:
    layout = F.adaptive_avg_pool2d(x, min(CELLS, *x.shape[2:])).flatten(1)
    return {"layout": layout, "texture": _texture(x), "colour": _color(x)}


def _texture(x: Tensor) -> Tensor:
    """Return logarithms of root mean squares per channel: of differences along rows and columns at every scale, and of
    second differences at the finest scale, which reveal blur."""
    found = []
    for scale in range(SCALES):
        if scale:
            # Means of 2x2 pixels, as by `avg_pool2d`, but several times as fast.
            height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
            rows = x[:, :, 0:height:2, :width] + x[:, :, 1:height:2, :width]
            x = (rows[..., 0::2] + rows[..., 1::2]) / 4
        across = x.diff(dim=3)
        found += [_log(_mean_square(across)), _log(_mean_square(x.diff(dim=2)))]
        if not scale:
            found.append(_log(_mean_square(across.diff(dim=3))))
        if min(x.shape[2:]) < 8:
            break
    return torch.cat(found, 1)


def _mean_square(x: Tensor) -> Tensor:
    """Return the mean squares (N, C) of (N, C, ...)."""
    norm: Tensor = torch.linalg.vector_norm(x.flatten(2), dim=2)
    return norm.square() / math.prod(x.shape[2:])


def _color(x: Tensor) -> Tensor:
    """Return mean, spread, skewness, kurtosis and range per channel, and how much neighboring channels differ."""
    x = x.flatten(2)
    mean = x.mean(2)
    centerd = x - mean[:, :, None]
    square = centerd.square()
    variance = square.mean(2)
    deviation = variance.sqrt() + QUIET
    skewness = (square * centerd).mean(2) / deviation**3
    kurtosis = _log(_mean_square(square) / deviation**4)
    found = [mean, _log(variance), skewness, kurtosis, x.amin(2), x.amax(2)]
    if x.shape[1] > 1:
        found.append(_log((centerd - centerd.roll(1, 1)).square().mean(2)))
    return torch.cat(found, 1)


def _log(square: Tensor) -> Tensor:
    return (square + QUIET**2).log() / 2


def stage_numbers(h: Tensor) -> Tensor:
    """Return (N, d) features of a stage's output: (N, C, H, W) maps, (N, T, D) tokens or (N, D) vectors."""
    if h.ndim == 3 and h.shape[1] == 1:
        h = h[:, 0]
    return _narrow(torch.cat([moments(part) for part in torch.split(h, PART)]) if h.ndim > 2 else h)


@wrap_torch_function(lambda h: (h,))
def moments(h: Tensor) -> Tensor:
    """Return (N, 2 D) means and standard deviations over the positions of (N, D, ...) maps or (N, T, D) tokens."""
    # Positions precede features, as in the memory layout of maps.
    positions = h if h.ndim == 3 else h.permute(0, *range(2, h.ndim), 1).flatten(1, -2)
    mean = positions.mean(1)
    variance = positions.square().mean(1) - mean.square()
    return torch.cat([mean, variance.clamp_min(0).sqrt()], 1)


def moments_directly(h: Tensor) -> Tensor:
    """Return `moments` up to rounding, without a change of layout, for export."""
    dims = [1] if h.ndim == 3 else list(range(2, h.ndim))
    mean = h.mean(dims)
    variance = h.square().mean(dims) - mean.square()
    return torch.cat([mean, variance.clamp_min(0).sqrt()], 1)


def _narrow(numbers: Tensor) -> Tensor:
    """Return (N, d) features with d at most `NUMBERS`; more are projected orthonormally."""
    width = numbers.shape[1]
    return numbers if width <= NUMBERS else numbers @ _projection_on(numbers.device, width)


@lru_cache(maxsize=64)
def _projection_on(device: torch.device, width: int) -> Tensor:
    return brought(_projection(width), device)


@lru_cache(maxsize=64)
def _projection(width: int) -> Tensor:
    with seeded("familiarity", width):
        columns: Tensor = torch.linalg.qr(torch.randn(width, NUMBERS, dtype=torch.float64)).Q
    return columns.float()


def stages(module: nn.Module, sampled: bool = True) -> list[nn.Module]:
    """Return the encoder's parts whose outputs are recorded, in order; if `sampled`, only those before dropout."""
    encoders = (getattr(part, "encoder", None) for part in module.modules())
    parts = list(flat(next((each for each in encoders if isinstance(each, nn.Module)), module)))
    first = next((i for i, part in enumerate(parts) if sampled and has_dropout(part)), len(parts))
    parts = [part for part in parts[:first] if not isinstance(part, SHAPES)]
    found: list[nn.Module] = []
    for part, after in zip(parts, [*parts[1:], None], strict=False):
        if after is None or (not isinstance(part, LINEAR) and not isinstance(after, POOLING)):
            found += [*_within(part), part]
    if len(found) <= STAGES:
        return found
    return [found[round(i * (len(found) - 1) / (STAGES - 1))] for i in range(STAGES)]


def _within(part: nn.Module) -> list[nn.Module]:
    """Return the stages of a part with its own forward, if it keeps them in lists: mostly blocks or layers."""
    if isinstance(part, Repeated):
        return []
    lists = [each for each in part.children() if isinstance(each, nn.ModuleList | nn.Sequential)]
    if not lists:
        inner = [each for each in part.children() if any(True for _ in each.children())]
        return [stage for each in inner for stage in _within(each)]
    stages = [stage for each in lists for stage in each]
    return [stage for stage in stages if not isinstance(stage, LINEAR)]


def before_last(module: nn.Module) -> list[nn.Module]:
    """Return, in a list, the part of a model whose output its last linear layer takes, or the last part before dropout.
    The list is empty if the model's own code runs the layer, or if nothing precedes it."""
    parts = list(flat(module))
    last = max((i for i, part in enumerate(parts) if isinstance(part, nn.Linear)), default=0)
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), last)
    return [part for part in parts[: min(first, last)] if not isinstance(part, SHAPES)][-1:]


@contextmanager
def recording(parts: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Record the features of parts of a model, (n, d) for each pass, in the order of passes."""
    found: list[list[Tensor]] = []
    handles = []
    for part in parts:
        passes: list[Tensor] = []
        found.append(passes)

        def record(part: nn.Module, given: object, output: object, passes: list[Tensor] = passes) -> None:
            if isinstance(output, Tensor):  # a recurrent layer, for instance, returns several
                passes.append(stage_numbers(output.detach()))

        handles.append(part.register_forward_hook(record))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def by_answer(passes: Sequence[Tensor], inputs: int, answers: int) -> list[Tensor]:
    """Return the (N, d) features of a stage for each answer, from all its passes. Answers that share a pass share its
    features; if there are more passes than answers, the last ones count."""
    each = torch.split(torch.cat(list(passes)), max(inputs, 1))
    return [each[0]] * answers if len(each) < answers else list(each[-answers:])


BUCKETS = 64
"""Number of hash buckets for the ids of a sequence; ids in the same bucket are not distinguished."""
PAIRS = 32
"""Number of hash buckets for pairs of neighboring ids."""
STRETCHES = 8
"""Number of parts of a series whose means describe its course."""
FACTOR = 2654435761
"""Knuth's multiplicative hash: 2^32 over the golden ratio."""


def token_numbers(x: Tensor) -> dict[str, Tensor]:
    """Return (N, d) float32 features of ids (N, T) int64, by name.

    The "length": the share of steps before the run of equal ids at the end, which pads shorter sequences, the numbers
    of distinct ids and of repeated neighbors, and the mean and largest logarithm of an id. The "tokens": square roots
    of the shares of ids in 64 hash buckets. The "order": the same as "tokens" for pairs of neighbors, in 32 buckets.
    """
    x = x.flatten(1)
    steps = x.shape[1]
    filled = (x == x[:, -1:]).flip(1).cumprod(1).sum(1, keepdim=True) - 1  # the last id is not padding
    real = torch.arange(steps, device=x.device) < steps - filled
    count = real.sum(1, keepdim=True).float()
    values, repeated = x.sort(1).values, (x.diff(dim=1) == 0) & real[:, 1:]
    different = (values.diff(dim=1) != 0).sum(1, keepdim=True) + 1
    logarithm = (x.double() + 1).log().float()
    mean = (logarithm * real).sum(1, keepdim=True) / count
    length = [count / steps, different / steps, repeated.sum(1, keepdim=True) / count, mean]
    return {
        "length": torch.cat([*length, logarithm.amax(1, keepdim=True)], 1),
        "tokens": _shares(_hashed(x, BUCKETS), real, BUCKETS),
        "order": _shares(_hashed(x[:, :-1] * 31 + x[:, 1:], PAIRS), real[:, 1:], PAIRS),
    }


def _hashed(ids: Tensor, buckets: int) -> Tensor:
    return (((ids % (1 << 31)) * FACTOR) % (1 << 32)) * buckets >> 32


def _shares(bucket: Tensor, real: Tensor, buckets: int) -> Tensor:
    """Return (N, buckets) square roots of shares, which makes distances equally large for rare and frequent ids."""
    counted = torch.zeros(len(bucket), buckets, device=bucket.device).scatter_add_(1, bucket, real.float())
    return (counted / real.sum(1, keepdim=True).clamp_min(1)).sqrt()


def series_numbers(x: Tensor) -> dict[str, Tensor]:
    """Return (N, d) float32 features of series (N, T, C), by name.

    Per channel the "levels": mean, least and largest value; the "changes": logarithms of the standard deviation and of
    the root mean squares of first and second differences; and the "course": the means of 8 parts of time.
    """
    x = x.transpose(1, 2)
    mean, first = x.mean(2), x.diff(dim=2)
    changes = [
        _mean_square_in_time(x - mean[:, :, None]),
        _mean_square_in_time(first),
        _mean_square_in_time(first.diff(dim=2)),
    ]
    return {
        "levels": torch.cat([mean, x.amin(2), x.amax(2)], 1),
        "changes": torch.cat([(each + QUIET**2).log() / 2 for each in changes], 1),
        "course": F.adaptive_avg_pool1d(x, min(STRETCHES, x.shape[2])).flatten(1),
    }


def _mean_square_in_time(x: Tensor) -> Tensor:
    """Return (N, C) mean squares of (N, C, T), 0 without steps."""
    return x.square().sum(2) / max(x.shape[2], 1)


class LastLayer(NamedTuple):
    """Inputs and outputs of a model's last layer in one pass in evaluation mode."""

    name: str
    """Name of the layer in the model."""
    weight: Tensor  # (C, D), with the bias as its last column
    hidden: Tensor  # (N, D), with a 1 as the input of the bias
    logits: Tensor  # (N, C)


@torch.no_grad()
def last_layer(module: nn.Module, x: Tensor) -> LastLayer:
    """Pass (N, ...) inputs through a module, without dropout, and return inputs and outputs of its last linear layer.
    Raises ConfigurationError unless the module's output is the output of a linear layer with inputs (N, H)."""
    calls: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def keep(layer: nn.Module, given: tuple[Any, ...], said: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            calls[:] = [(layer, given[0], said)]

    hooks = [part.register_forward_hook(keep) for part in module.modules() if isinstance(part, nn.Linear)]
    try:
        logits = module.eval()(x)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls or calls[0][1].ndim != 2 or not _same(calls[0][2], logits):
        raise ConfigurationError(
            "uncertainty.source = 'laplace' needs a model that ends in a linear layer, but this model does not",
            "uncertainty.source",
        )
    layer, hidden, _ = calls[0]
    weight = layer.weight.detach()
    if layer.bias is not None:
        weight = torch.cat([weight, layer.bias.detach()[:, None]], 1)
        hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], 1)
    (name,) = (name for name, part in module.named_modules() if part is layer)
    return LastLayer(name, weight, hidden, logits)


def unobserved(module: nn.Module) -> nn.Module:
    """Return a copy of a module without hooks, for passes that are not part of an answer."""
    copy = deepcopy(module)
    for part in copy.modules():
        part._forward_hooks.clear()
    return copy


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same object or have equal values: custom models may copy their output."""
    if one.shape != other.shape or one.data_ptr() == other.data_ptr():
        return one.shape == other.shape
    return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
