"""Monte Carlo dropout: only layers that drop units are sampled, and everything before the first of them runs once.

Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016. A pass draws one mask per layer for all inputs, so a
pass is one sampled network, and the same networks are sampled every time. So a prediction depends neither on when it is
made nor on other inputs, and silos are compared under common random numbers.

Dropout inside a stage with its own forward (a block, attention, a recurrent layer, or `F.dropout` in code that reads
`self.training`) is sampled too. There each input draws its own masks, which then depend on the other inputs.
`own_masks` draws masks per input everywhere, as torch's dropout does. `GaussianUnits` are sampled in such passes, too.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ..core import ConfigurationError, key, seeded
from ..core.devices import brought
from ..core.random import seeded_device


class GaussianUnits(nn.Module):
    """Map (N, 2 Z) numbers to (N, Z) units: drawn for each input in training, their means in evaluation.

    A pass of `mc_dropout` draws once for all inputs. The stage also holds a Gaussian of the units of each class, with
    which those of inputs can be compared.
    """

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.class_means = nn.Parameter(torch.empty(classes, units))
        self.class_spreads = nn.Parameter(torch.empty(classes, units))
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.class_means.zero_()
        self.class_spreads.fill_(1)
        self.scale.fill_(1)

    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and standard deviations, (..., Z) each, that numbers (..., 2 Z) encode."""
        mean, spread = h.chunk(2, -1)
        return mean, F.softplus(spread)

    def drawn(self, h: Tensor, noise: Tensor) -> Tensor:
        """Return (..., Z) units that are `noise` standard deviations from their means."""
        mean, deviation = self.moments(h)
        return mean + deviation * noise

    def forward(self, h: Tensor) -> Tensor:
        mean = h.chunk(2, -1)[0]
        return self.drawn(h, torch.randn_like(mean)) if self.training else mean

    def divergence(self, h: Tensor, y: Tensor) -> Tensor:
        """Return (N,) KL divergences in nats of the units, times `scale`, from the Gaussians of the labels."""
        mean, deviation = (each * self.scale for each in self.moments(h))
        center, width = self.class_means[y], F.softplus(self.class_spreads)[y]
        apart = (deviation.square() + (mean - center).square()) / (2 * width.square())
        return (width.log() - deviation.log() + apart - 0.5).sum(1)


ELEMENTWISE = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh)
"""Stages for which the order of the axes of units and inputs makes no difference."""


def has_dropout(module: nn.Module) -> bool:
    """Return whether any part of the module drops units, or may: code that reads `training` is assumed to."""
    return any(map(_drops, module.modules()))


def _drops(part: nn.Module) -> bool:
    """Return whether a module drops units itself, apart from its submodules."""
    if isinstance(part, _DropoutNd):
        return part.p > 0
    if isinstance(part, nn.MultiheadAttention):
        return bool(part.dropout > 0)
    if isinstance(part, nn.RNNBase):
        return bool(part.dropout > 0 and part.num_layers > 1)
    return not isinstance(part, _NormBase) and _reads_training(type(part))  # type: ignore[arg-type]  # torch types hashes of modules otherwise


@lru_cache(maxsize=1024)
def _reads_training(kind: type) -> bool:
    """Return whether code of a class, except torch's own, reads `training`, mostly for `F.dropout`."""
    own = (each for each in kind.__mro__ if not each.__module__.startswith("torch."))
    codes = [value.__code__ for each in own for value in vars(each).values() if isinstance(value, FunctionType)]
    while codes:
        code = codes.pop()
        if "training" in code.co_names:
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False


def flat(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the stages of nested `nn.Sequential`s, in order."""
    if type(module).forward is nn.Sequential.forward:
        for part in module.children():
            yield from flat(part)
    else:
        yield module


@torch.no_grad()
def mc_dropout(module: nn.Module, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    """Return (S, N, C) outputs of `samples` networks drawn by dropout, for (N, ...) inputs.

    The module is used as in evaluation: BatchNorm keeps its statistics. Without dropout the result has one sample,
    since all would be equal. The networks are a function of `seed` and the module's layers only, unless dropout is
    hidden inside a stage with its own forward. Raises ConfigurationError for a stage that cannot be sampled without
    changing the model.
    """
    if any(part.training for part in module.modules()):
        module.eval()
    parts = list(flat(module))
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), len(parts))
    x, parts = _hidden(parts[:first], x), parts[first:]
    if not parts:
        return x[None]
    drop, linear = parts[0], parts[1] if len(parts) > 1 else None
    if isinstance(drop, nn.Dropout) and drop.p < 1 and isinstance(linear, nn.Linear) and x.ndim == 2:
        missing = _missing_on(x.device, samples, *linear.weight.shape, drop.p, seed)
        x, parts, generator = _thinned(linear, x, drop.p, missing), parts[2:], missing.generator
    else:
        x, generator = x.expand(samples, *x.shape), _generator(seed)
    if parts:
        with torch.random.fork_rng(devices=[]), seeded_device(x.device, key("mc-dropout", seed)):
            torch.set_rng_state(generator)
            for part in parts:
                x = _pass(part, x)
    return x


@torch.no_grad()
def own_masks(module: nn.Module, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    """Return (S, N, C) outputs of `samples` passes of MC dropout in which each of (N, ...) inputs has its own masks.

    Like `mc_dropout`, except that a pass is not one network: masks are a function of `seed` and of an input's position
    among the N. The distribution of a single input's outputs is the same.
    """
    if any(part.training for part in module.modules()):
        module.eval()
    parts = list(flat(module))
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), len(parts))
    x, parts = _run(parts[:first], x), parts[first:]
    if not parts:
        return x[None]
    x = x.expand(samples, *x.shape)
    with torch.random.fork_rng(devices=[]), seeded_device(x.device, key("mc-dropout", seed)):
        torch.set_rng_state(_generator(seed))
        for part in parts:
            if isinstance(part, nn.Dropout):
                x = x * brought(F.dropout(torch.ones(x.shape, dtype=x.dtype), part.p), x.device)
            else:
                x = _pass(part, x)
    return x


def _run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    for part in parts:
        x = part(x)
    return x


def _hidden(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run stages; store the units of a final linear layer and its activation one after the other, as `_thinned` reads
    them.
    """
    if len(parts) < 2 or not (isinstance(linear := parts[-2], nn.Linear) and isinstance(parts[-1], ELEMENTWISE)):
        return _run(parts, x)
    x = _run(parts[:-2], x)
    if x.ndim != 2:
        return _run(parts[-2:], x)
    activation = parts[-1]
    units: Tensor = activation.forward(_columns(linear, x.T)).T
    for hook in activation._forward_hooks.values():  # hooks expect inputs on the first axis, as in any other pass
        hook(activation, (), units)
    return units


def _columns(linear: nn.Linear, columns: Tensor, scale: float = 1) -> Tensor:
    """Map (D, N) inputs, one per column, to (H, N) outputs for `scale` times the inputs."""
    if linear.bias is None:
        return linear.weight @ columns * scale
    return torch.addmm(linear.bias[:, None], linear.weight, columns, alpha=scale)


class Missing(NamedTuple):
    """The units that S passes drop, listed for each pass and each of C outputs."""

    units: Tensor  # (M,) int64, pass by pass, in a pass output by output
    weights: Tensor  # (M,) int64, where the weight from that unit to that output is among all
    begins: Tensor  # (S * C,) int64, where the list of a pass and output begins
    generator: Tensor
    """State of torch's generator after the masks were drawn."""


@lru_cache(maxsize=16)
def _missing_on(device: torch.device, samples: int, outputs: int, units: int, p: float, seed: int) -> Missing:
    """Return the same units on all devices: they are drawn on the CPU."""
    found = _missing(samples, outputs, units, p, seed)
    unit, weights, begins = (brought(each, device) for each in found[:3])
    return Missing(unit, weights, begins, found.generator)


@lru_cache(maxsize=16)
def _missing(samples: int, outputs: int, units: int, p: float, seed: int) -> Missing:
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(_generator(seed))
        dropped = F.dropout(torch.ones(samples, 1, units), p) == 0
        generator = torch.get_rng_state()
    lists, unit = dropped.expand(samples, outputs, units).flatten(0, 1).nonzero(as_tuple=True)
    lengths = torch.bincount(lists, minlength=samples * outputs)
    return Missing(unit, lists % outputs * units + unit, lengths.cumsum(0) - lengths, generator)


@lru_cache(maxsize=16)
def _generator(seed: int) -> Tensor:
    """Return the state of torch's generator from which the networks of a seed are drawn."""
    with seeded("mc-dropout", seed):
        return torch.get_rng_state()


def _thinned(linear: nn.Linear, x: Tensor, p: float, missing: Missing) -> Tensor:
    """Pass (N, H) hidden units, of which each pass drops some, through a linear layer; return (S, N, C).

    The output of all units, computed once, minus the contributions of dropped ones: S p layers' work instead of S.
    """
    columns, keep = x.T.contiguous(), 1 / (1 - p)
    weights = linear.weight.flatten().index_select(0, missing.weights)
    y = F.embedding_bag(missing.units, columns, missing.begins, mode="sum", per_sample_weights=weights)
    y = y.view(-1, linear.out_features, len(x))
    return torch.sub(_columns(linear, columns, keep), y, alpha=keep, out=y).transpose(1, 2)


def _pass(part: nn.Module, x: Tensor) -> Tensor:
    """Run one stage on (S, N, ...), with a mask or a draw per sample that all inputs share."""
    if isinstance(part, nn.Dropout):
        return x * brought(F.dropout(torch.ones(len(x), 1, *x.shape[2:], dtype=x.dtype), part.p), x.device)
    if isinstance(part, GaussianUnits):
        return part.drawn(x, brought(torch.randn(len(x), 1, x.shape[-1] // 2), x.device))
    # Dropout inside a stage: the stage draws masks for each input.
    y = _with_dropout(part, x.flatten(0, 1)) if has_dropout(part) else part(x.flatten(0, 1))
    return y.view(*x.shape[:2], *y.shape[1:])


FUSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Layers with a faster path in evaluation, which ignores dropout."""


def _with_dropout(part: nn.Module, x: Tensor) -> Tensor:
    """Run a stage with dropout as in training, and everything else as in evaluation.

    Raises ConfigurationError for one that changes its buffers: then every prediction would change the next.
    """
    live = [each for each in part.modules() if _drops(each) or isinstance(each, FUSED)]
    before = [(buffer, buffer._version) for buffer in part.buffers()]
    try:
        for each in live:
            each.training = True  # not train(), which would reach normalisation within
        y: Tensor = part(x)
    finally:
        for each in live:
            each.training = False
    after = [(buffer, buffer._version) for buffer in part.buffers()]
    if [(id(buffer), version) for buffer, version in before] != [(id(buffer), version) for buffer, version in after]:
        raise ConfigurationError(
            f"{type(part).__name__} changes its buffers while it drops units, so MC dropout would change the model "
            "with every prediction; set uncertainty.source = 'laplace' or 'ensemble', or keep them fixed in evaluation"
        )
    return y
