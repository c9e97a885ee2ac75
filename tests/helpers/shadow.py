"""A stand-in accelerator in pure Python, for tests of what runs on a device where there is none.

A tensor on device "shadow" holds a tensor on the CPU, and every kernel runs there, so that results have the CPU's bits.
As with CUDA, an operation that mixes shadow tensors with the CPU's is refused (numbers without a dimension aside), and
so is one that CUDA has no deterministic kernel for while torch is asked for deterministic ones. Whenever the host would
have to wait for a value (`.item()`, `.cpu()`, a mask as an index, `nonzero`), that is written down in `READS`.

What it cannot tell: speed, CUDA's own rounding and random numbers, streams, memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "shadow"
READS: list[str] = []
"""Names of the operations that the host has waited for, in order."""
SEEDS: list[int] = []
"""What the device's generator was seeded with."""
_NO_DOUBLE: list[bool] = []
WAITS = frozenset({
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "unique_dim", "_unique2",
    "unique_consecutive", "repeat_interleave", "linalg_eigh", "_linalg_eigh", "linalg_cholesky",
    "linalg_cholesky_ex",
})  # fmt: skip
"""Operations whose result, or the shape of it, the host has to know before it goes on."""
COPIES = frozenset({"_to_copy", "copy_", "_copy_from"})
UNDETERMINED = frozenset({
    "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "grid_sampler_2d_backward", "histc", "kthvalue", "put_", "nll_loss2d_forward",
})  # fmt: skip
"""Operations of which torch says that CUDA has no deterministic kernel, as far as models may use them."""
SIZED = ("arange", "arange.start", "arange.start_step", "eye", "eye.m")
"""Operations that torch begins with an empty tensor and makes larger, which one that is written in Python cannot be."""
LOWER = ("linear", "conv1d", "conv2d", "conv3d", "matmul", "mm", "bmm", "addmm", "baddbmm")
"""What autocast computes in the lower precision."""


class Shadow(Tensor):
    """A tensor on the stand-in device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Shadow:
        made: Shadow = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0), requires_grad=False, dispatch_sizes_strides_policy=None,
        )  # fmt: skip
        return made

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self, **more: Any) -> str:
        return f"Shadow({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        """torch's own is not for tensors that are written in Python."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Backend:
    """What torch asks of the module `torch.shadow`. Its random numbers are the CPU's, whatever its seed."""

    get_rng_state = staticmethod(lambda: torch.zeros(0))
    set_rng_state = staticmethod(lambda state: None)
    manual_seed = staticmethod(SEEDS.append)
    manual_seed_all = staticmethod(lambda seed: None)
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    _is_in_bad_fork = staticmethod(lambda: False)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The value with a function applied to all that is in its lists and tuples."""
    return type(value)([_mapped(function, each) for each in value]) if type(value) in (list, tuple) else function(value)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Shadow) else value


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    name = function.overloadpacket.__name__
    if name in COPIES:
        return _copied(function, name, args, kwargs)
    tensors = list(_tensors((*args, *kwargs.values())))
    ours = [each for each in tensors if isinstance(each, Shadow)]
    if ours and any(each.dim() for each in tensors if not isinstance(each, Shadow)):
        raise RuntimeError(f"{function}: tensors on {sorted({str(each.device) for each in tensors})}")
    _check_determined(name, args, kwargs)
    if name in WAITS or (name in ("index", "index_put_", "index_put") and _has_mask(args[1])):
        READS.append(name)
    if "device" in kwargs:
        kwargs = kwargs | {"device": "cpu"}
    if kwargs.get("pin_memory"):
        kwargs = kwargs | {"pin_memory": False}
    held = {key: _mapped(_held, value) for key, value in kwargs.items()}
    found = _kernel(name, function)(*_mapped(_held, args), **held)
    same = {id(each.held): each for each in ours}  # what was changed in place is the same tensor after it
    return _mapped(lambda each: _shadow(each, same) if isinstance(each, Tensor) else each, found)


def _shadow(found: Tensor, same: dict[int, Shadow]) -> Shadow:
    return same[id(found)] if id(found) in same else _placed(found)


def _placed(found: Tensor) -> Shadow:
    if _NO_DOUBLE and found.dtype == torch.float64:
        raise TypeError(f"Cannot convert a tensor to float64, which {NAME} does not support")
    return Shadow(found)


@contextmanager
def without_double() -> Iterator[None]:
    """Meanwhile the device has no float64, as Apple's GPUs have none."""
    _NO_DOUBLE.append(True)
    try:
        yield
    finally:
        _NO_DOUBLE.pop()


def _copied(function: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A copy to, from or on the device: the only operation that may have tensors of both."""
    if name == "_to_copy":
        target = torch.device(kwargs.get("device") or args[0].device)
        found = function(_held(args[0]), **kwargs | {"device": "cpu", "pin_memory": False})
        if target.type == NAME:
            return _placed(found)
        READS.append(name)
        return found
    function(_held(args[0]), _held(args[1]), *args[2:], **kwargs)
    if not isinstance(args[0], Shadow):
        READS.append(name)
    return args[0]


def _has_mask(indices: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)


def _check_determined(name: str, args: Any, kwargs: Any) -> None:
    if not torch.are_deterministic_algorithms_enabled():
        return
    weighted = name == "bincount" and (args[1:2] or [kwargs.get("weights")])[0] is not None
    summed = name == "cumsum" and args[0].is_floating_point()
    if name in UNDETERMINED or weighted or summed or (name == "median" and len(args) > 1):
        raise RuntimeError(f"{name} on {NAME} does not have a deterministic implementation")


def _kernel(name: str, function: Any) -> Callable[..., Any]:
    own = {"native_dropout": _dropout, "native_dropout_backward": _dropout_backward}
    return own.get(name, function)


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """What the CPU does for dropout in training, which devices have a kernel of their own for."""
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    noise = torch.empty_like(x).bernoulli_(1 - p)
    mask = noise.bool()
    return x * noise.div_(1 - p), mask


def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) / (1 / scale))


def _lower(name: str) -> Callable[..., Any]:
    """An operation under autocast: in bfloat16, whatever its inputs are."""

    def cast(each: Any) -> Any:
        return each.to(torch.bfloat16) if isinstance(each, Tensor) and each.dtype == torch.float32 else each

    def lower(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return getattr(torch.ops.aten, name)(
                *_mapped(cast, args), **{key: cast(value) for key, value in kwargs.items()}
            )

    return lower


def _sized(name: str) -> Callable[..., Any]:
    kind, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, kind), overload or "default")
    return lambda *args, **kwargs: _run(function, args, kwargs)


_KEPT: list[Any] = []
"""What torch has been told of the device, which it forgets once nobody holds it."""


def on_shadow() -> str:
    """The name of the device, after it was made known to torch; skips the test where torch has no hook for it."""
    hook = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if hook is None:
        pytest.skip(f"torch {torch.__version__} lets no device be written in Python", allow_module_level=True)
    if not _KEPT:
        hook(NAME, backend_module=_Backend())
        fallback = torch.library.Library("_", "IMPL")
        fallback.fallback(lambda function, *args, **kwargs: _run(function, args, kwargs), "PrivateUse1")
        fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        lower = torch.library.Library("aten", "IMPL")
        for name in LOWER:
            lower.impl(name, _lower(name), "AutocastPrivateUse1")
        for name in SIZED:
            lower.impl(name, _sized(name), "PrivateUse1")
        _KEPT.extend([fallback, lower])
    return NAME


@contextmanager
def reads() -> Iterator[list[str]]:
    """The names of what the host waits for meanwhile, once it is over."""
    before, found = len(READS), list[str]()
    yield found
    found += READS[before:]
