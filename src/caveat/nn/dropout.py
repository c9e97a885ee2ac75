"""Monte Carlo dropout: only layers that drop units are sampled, and everything before the first one runs once.

Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016. A pass draws one mask per layer for all inputs, so a
pass is one sampled network, and the same networks are sampled every time. Predictions therefore do not depend on other
inputs or earlier calls, and silos are compared with common random numbers.

Dropout inside a stage with its own forward (a block, attention, a recurrent layer, or `F.dropout` in code that reads
`self.training`) is sampled too: such a stage computes each input separately, with the masks of the pass.
`GaussianUnits` are sampled in such passes, too. A part that does more in training than drop units (noise, auxiliary
logits, a counter) stays in evaluation mode, but its calls of dropout functions are active (`DROPS`).
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from ..core import key, seeded
from ..core.devices import brought
from ..core.random import seeded_device


class GaussianUnits(nn.Module):
    """Map (N, 2 Z) numbers to (N, Z) Gaussian units: drawn for each input in training, their means in evaluation.

    A pass of `mc_dropout` draws once for all inputs.
    """

    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and standard deviations, (..., Z) each, that numbers (..., 2 Z) encode."""
        mean, spread = h.chunk(2, -1)
        return mean, F.softplus(spread)

    def drawn(self, h: Tensor, noise: Tensor) -> Tensor:
        """Return (..., Z) units, `noise` standard deviations from their means."""
        mean, deviation = self.moments(h)
        return mean + deviation * noise

    def forward(self, h: Tensor) -> Tensor:
        mean = h.chunk(2, -1)[0]
        return self.drawn(h, torch.randn_like(mean)) if self.training else mean


def divergence(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Return (N,) KL divergences in nats of one Gaussian from another, given means and standard deviations (N, Z)."""
    (mean, deviation), (center, width) = one, other
    apart = (deviation.square() + (mean - center).square()) / (2 * width.square())
    return (width.log() - deviation.log() + apart - 0.5).sum(1)


ELEMENTWISE = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh)
"""Stages for which the axes of units and inputs can be swapped."""


def has_dropout(module: nn.Module) -> bool:
    """Return whether any part of the module drops units, or reads `training`, which code mostly does to drop units."""
    return any(map(_drops, module.modules()))


DROPS = "calls_dropout"
"""Attribute of a part that does more in training than drop units: whether it calls dropout functions."""


def _drops(part: nn.Module) -> bool:
    """Return whether a module drops units itself, apart from its submodules."""
    if DROPS in vars(part):
        return bool(vars(part)[DROPS])
    if isinstance(part, _DropoutNd):
        return part.p > 0
    if isinstance(part, nn.MultiheadAttention):
        return bool(part.dropout > 0)
    if isinstance(part, nn.RNNBase):
        return bool(part.dropout > 0 and part.num_layers > 1)
    return reads_training(part)


def reads_training(part: nn.Module) -> bool:
    """Return whether code of a module reads `training`, except in torch's own modules and in normalization."""
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


def _is_plain(stage: nn.Dropout) -> bool:
    """Return whether a stage drops units with torch's forward rather than its own."""
    return type(stage).forward is nn.Dropout.forward


def flat(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the stages of nested `nn.Sequential`s, in order."""
    if type(module).forward is nn.Sequential.forward:
        for part in module.children():
            yield from flat(part)
    else:
        yield module


DROPOUT = (
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
)  # fmt: skip
BERNOULLI = (torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_)


class DropoutFunctions(TorchFunctionMode):
    """Switches dropout functions on or off; if off, masks that code draws with `bernoulli` become their mean."""

    def __init__(self, on: bool) -> None:
        super().__init__()
        self.on, self.called = on, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUT:
            given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
            self.called |= given.get("p", 0.5) > 0
            return func(**given | {"training": self.on})
        if not self.on and func in BERNOULLI:
            x, p = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5 if func is Tensor.bernoulli_ else None)
            mean = x.clone() if p is None else torch.zeros_like(x) + p
            return x.copy_(mean) if func is Tensor.bernoulli_ else mean
        if not self.on and func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            return func(**dict(zip(names, args, strict=False)) | kwargs | {"dropout_p": 0.0})
        return func(*args, **kwargs)


@torch.no_grad()
def mc_dropout(module: nn.Module, x: Tensor, samples: int, seed: int = 0, shared: bool = True) -> Tensor:
    """Return (S, N, C) outputs of `samples` networks drawn by dropout, for (N, ...) inputs.

    The module is used as in evaluation: BatchNorm keeps its statistics. Without dropout, all samples would be equal,
    and the result has only one. The networks are a function of `seed` and the module's layers only. If masks are not
    `shared`, a pass is not one network: each input has its own masks, as with torch's dropout, which are a function of
    `seed` and of its position in the batch. The distribution of a single input's outputs is the same.
    """
    if any(part.training for part in module.modules()):
        module.eval()
    parts = list(flat(module))
    first = next((i for i, part in enumerate(parts) if has_dropout(part)), len(parts))
    x, parts = (_hidden if shared else _run)(parts[:first], x), parts[first:]
    if not parts:
        return x[None]
    drop, linear = parts[0], parts[1] if len(parts) > 1 else None
    plain = shared and x.ndim == 2 and isinstance(drop, nn.Dropout) and _is_plain(drop)
    if plain and isinstance(drop, nn.Dropout) and drop.p < 1 and isinstance(linear, nn.Linear):
        missing = _missing_on(x.device, samples, *linear.weight.shape, drop.p, seed)
        x, parts, generator = _thinned(linear, x, drop.p, missing), parts[2:], missing.generator
    else:
        x, generator = x.expand(samples, *x.shape), _generator(seed)
    if parts:
        with torch.random.fork_rng(devices=[]), seeded_device(x.device, key("mc-dropout", seed)):
            torch.set_rng_state(generator)
            for part in parts:
                x = _pass(part, x, shared)
    return x


def _run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    for part in parts:
        x = part(x)
    return x


def _hidden(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run stages; store the units of a final linear layer and its activation contiguously, as `_thinned` reads them."""
    if len(parts) < 2 or not (isinstance(linear := parts[-2], nn.Linear) and isinstance(parts[-1], ELEMENTWISE)):
        return _run(parts, x)
    x = _run(parts[:-2], x)
    if x.ndim != 2:
        return _run(parts[-2:], x)
    activation = parts[-1]
    units: Tensor = activation.forward(_columns(linear, x.T)).T
    for hook in activation._forward_hooks.values():  # hooks expect inputs on the first axis
        hook(activation, (), units)
    return units


def _columns(linear: nn.Linear, columns: Tensor, scale: float = 1) -> Tensor:
    """Map (D, N) inputs, one per column, to (H, N) outputs for `scale` times the inputs."""
    if linear.bias is None:
        return linear.weight @ columns * scale
    return torch.addmm(linear.bias[:, None], linear.weight, columns, alpha=scale)


class Missing(NamedTuple):
    """The units that S passes drop, listed by pass and by the C outputs."""

    units: Tensor  # (M,) int64, by pass, then by output
    weights: Tensor  # (M,) int64, position of the weight from that unit to that output
    begins: Tensor  # (S * C,) int64, where the list of each pass and output begins
    generator: Tensor
    """State of torch's generator after the masks were drawn."""


@lru_cache(maxsize=16)
def _missing_on(device: torch.device, samples: int, outputs: int, units: int, p: float, seed: int) -> Missing:
    """Draw dropped units on the CPU, so they are the same on all devices."""
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
    """Return the state of torch's generator for drawing the networks of a seed."""
    with seeded("mc-dropout", seed):
        return torch.get_rng_state()


def _thinned(linear: nn.Linear, x: Tensor, p: float, missing: Missing) -> Tensor:
    """Pass (N, H) hidden units through a linear layer, with some units dropped in each pass; return (S, N, C).

    The output of all units is computed once, and the contributions of dropped units are subtracted, which costs as much
    as S p layers instead of S.
    """
    columns, keep = x.T.contiguous(), 1 / (1 - p)
    weights = linear.weight.flatten().index_select(0, missing.weights)
    y = F.embedding_bag(missing.units, columns, missing.begins, mode="sum", per_sample_weights=weights)
    y = y.view(-1, linear.out_features, len(x))
    return torch.sub(_columns(linear, columns, keep), y, alpha=keep, out=y).transpose(1, 2)


def _pass(part: nn.Module, x: Tensor, shared: bool) -> Tensor:
    """Run one stage on (S, N, ...), with a mask or a draw per sample that all inputs share, or a mask per input."""
    if isinstance(part, nn.Dropout) and _is_plain(part):
        shape = (len(x), 1, *x.shape[2:]) if shared else x.shape
        return x * brought(F.dropout(torch.ones(shape, dtype=x.dtype), part.p), x.device)
    if isinstance(part, GaussianUnits):
        return part.drawn(x, brought(torch.randn(len(x), 1, x.shape[-1] // 2), x.device))
    if not has_dropout(part):
        y: Tensor = part(x.flatten(0, 1))
    elif not shared:
        y = _with_dropout(part, x.flatten(0, 1))
    else:  # only the stage knows which units belong to which input: one input at a time, with the same masks
        number = int(torch.randint(1 << 62, ()))
        found = []
        for each in x.unbind(1):
            with seeded("inside", number, device=x.device):
                found.append(_with_dropout(part, each.contiguous()))
        return torch.stack(found, 1)
    return y.view(*x.shape[:2], *y.shape[1:])


FUSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Layers with a fast path in evaluation that ignores dropout."""


def _with_dropout(part: nn.Module, x: Tensor) -> Tensor:
    """Run a stage with dropout as in training, and everything else as in evaluation."""
    more = [each for each in part.modules() if DROPS in vars(each)]
    live = [each for each in part.modules() if each not in more and (_drops(each) or isinstance(each, FUSED))]
    try:
        for each in live:
            each.training = True  # not train(), which would also affect normalization layers
        with DropoutFunctions(on=True) if more else nullcontext():
            y: Tensor = part(x)
    finally:
        for each in live:
            each.training = False
    return y
