"""Compute devices: find them by name, move tensors to a device and back, and move inputs in parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .aggregation import Payload
from .errors import ConfigurationError, message_of, short_repr

CPU = torch.device("cpu")
KEY = "engine.device"
EXPECTED = "expected cpu, auto, cuda, cuda:N or mps"
AUTO = ("cuda", "mps")
"""The types of devices that "auto" looks for, in this order; if there are none, "auto" is the CPU."""
Value = TypeVar("Value")


def find_device(name: str, start: bool = True, key: str = KEY) -> torch.device:
    """Return the device with this name; "auto" is the first GPU, or the CPU if there is no GPU.

    If `start` is true, initialize the device by creating one number on it. A process that has initialized CUDA can no
    longer be forked. Raises ConfigurationError for a device that does not exist or does not start.
    """
    if name == "auto":
        name = next((kind for kind in AUTO if device_count(kind)), "cpu")
    kind, number = _parts(name, key)
    if kind == "cpu":
        return CPU
    count = device_count(kind)
    if not count:
        raise _refused(name, f"torch {torch.__version__} finds no such device on this machine; {EXPECTED}", key)
    if number is not None and number >= count:
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise _refused(name, f"this machine has {there}", key)
    device = torch.device(kind, number or 0)
    if kind == "cuda":
        # cuBLAS reads this variable when it is initialized; without it, matrix products are not reproducible.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if start:
        try:
            torch.zeros(1, device=device).cpu()
        except Exception as error:  # drivers and backends raise any type
            raise _refused(name, f"the device cannot be initialized: {message_of(error)}", key) from error
    return device


def _parts(name: str, key: str = KEY) -> tuple[str, int | None]:
    """Return the type and index of a device name. Raises ConfigurationError if the name is invalid."""
    found = re.fullmatch(r"([a-z]+)(?::(\d{1,3}))?", name)
    if found is None or (found[1] in ("cpu", "mps") and found[2] is not None):
        raise _refused(name, EXPECTED, key)
    return found[1], None if found[2] is None else int(found[2])


def _refused(name: str, why: str, key: str) -> ConfigurationError:
    return ConfigurationError(f"{{key}} = {short_repr(name)}: {why}", key)


def known_kinds() -> list[str]:
    """Return the types of accelerators that torch may find on this machine, without initializing an accelerator."""
    found = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return [*AUTO, *([] if found is None or found.type in AUTO else [found.type])]


def device_count(kind: str) -> int:
    """Return the number of devices of a type; 0 if it is unknown without initializing a device."""
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return 0
    # is_available would start to initialize CUDA, and the process could no longer fork workers.
    count = getattr(module, "device_count", None)
    return 0 if kind == "cpu" or count is None else int(count())


def find_devices(name: str, workers: int = 1, key: str = KEY) -> tuple[torch.device, ...]:
    """Return the devices for a number of workers. For a type of GPU without an index, such as "cuda", these are as many
    devices of this type as there are workers, if available. With several workers, no device is initialized, because
    each worker initializes its own. Raises what `find_device` raises."""
    first = find_device(name, workers == 1, key)
    if first.type == "cpu" or ":" in name:
        return (first,)
    return tuple(torch.device(first.type, number) for number in range(min(workers, device_count(first.type))))


def check_name(name: str, key: str = KEY) -> None:
    """Raise ConfigurationError for an invalid name of a device. The device need not exist."""
    if name != "auto":
        _parts(name, key)


def device_model(device: torch.device) -> str:
    """Return the vendor's name of a device, such as "NVIDIA H100", or else its type."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None else device.type


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions of the software that computes on a device."""
    found: dict[str, Any] = {"torch": torch.__version__}
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda or torch.version.hip, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return {name: str(value) for name, value in found.items()}


def has_double(device: torch.device) -> bool:
    """Return whether a device supports float64. Apple's GPUs do not."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        return torch.ones(1, dtype=torch.float64, device=device).add(1).dtype == torch.float64
    except (TypeError, RuntimeError):
        return False


def free_memory(device: torch.device) -> int | None:
    """Return the number of free bytes on a device, or None if it is unknown."""
    module = torch.get_device_module(device)
    if (info := getattr(module, "mem_get_info", None)) is not None:
        return int(info(device)[0])
    if (most := getattr(module, "recommended_max_memory", None)) is not None:
        return int(most() - module.driver_allocated_memory())
    return None


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Make computations on a device bitwise reproducible, as on the CPU. Inside the context, torch raises RuntimeError
    for operations that have no deterministic implementation."""
    if device.type == "cpu":
        yield
        return
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    # This equals use_deterministic_algorithms, which takes seconds because it imports torch's compiler.
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False  # slow, and no uninitialized memory is read here
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for the copy if this is safe."""
    if tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=device.type == "cuda")


def brought_all(payload: Payload, device: torch.device) -> Payload:
    """Return groups of tensors on a device."""
    return {group: {name: brought(t, device) for name, t in tensors.items()} for group, tensors in payload.items()}


def home(value: Value) -> Value:
    """Return a value with its tensors on the CPU. The value is a tensor, or a dictionary or dataclass with tensors,
    such as a prediction; other values are returned unchanged."""
    if isinstance(value, Tensor):
        return value.cpu()  # type: ignore[return-value]
    if isinstance(value, dict):
        return {key: home(each) for key, each in value.items()}  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: home(getattr(value, field.name)) for field in fields(value)})
    return value


FLOAT = 4
"""Bytes of a float32."""


def memory() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: float, what: str, key: str = "") -> None:
    """Raise ConfigurationError if more bytes are needed than this machine has memory. `what` is the subject and verb of
    the message."""
    if needed > memory():
        text = f"{what} {needed / 1e9:,.0f} GB of memory, but this machine has {memory() / 1e9:,.0f} GB"
        raise ConfigurationError(text, key)


def cache_folder() -> Path:
    """Return $CAVEAT_CACHE, or the user's cache folder for caveat."""
    own = os.environ.get("CAVEAT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "caveat"


PART = 256
"""Number of inputs that are read at a time when all inputs are read into memory."""


class PartedInputs:
    """Model inputs (N, ...) that are read in parts: `x[index]` and the parts of `torch.split` are tensors. Any other
    function or method of tensors reads all inputs into memory."""

    requires_grad = False
    layout = torch.strided
    kept_on = torch.device("cpu")
    """Device on which an index of inputs avoids synchronization."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    def taken(self, index: npt.NDArray[np.int64]) -> Tensor:
        """Return the inputs at positions (n,), as a tensor (n, ...) on `device`."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{tuple(self.shape)}"

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, tuple):
            return self[index[0]][(slice(None), *index[1:])]
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        chosen = np.arange(len(self))[index]
        found = self.taken(np.atleast_1d(chosen))
        return found if np.ndim(chosen) else found[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[number] for number in range(len(self)))

    def split(self, size: int, dim: int = 0) -> Parts:
        """Return the inputs in parts of this size, each of which is read when it is accessed."""
        if dim:
            raise ValueError("inputs that are read in parts can only be split along their first axis")
        return Parts(self, size)

    def whole(self) -> Tensor:
        """Return all inputs as one tensor in memory."""
        return torch.cat(list(Parts(self, PART))) if len(self) else self[:0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.split:
            return args[0].split(*args[1:], **(kwargs or {}))
        return function(*map(_whole, args), **{name: _whole(value) for name, value in (kwargs or {}).items()})


class Parts(Sequence[Tensor]):
    """Parts of inputs, each of which is read when it is accessed."""

    def __init__(self, inputs: PartedInputs, size: int) -> None:
        self.inputs, self.size_of_each = inputs, size

    def __len__(self) -> int:
        return max(-(-len(self.inputs) // self.size_of_each), 1)

    def __getitem__(self, number: Any) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        start = number % len(self) * self.size_of_each
        return self.inputs[start : start + self.size_of_each]


class StreamedInputs(PartedInputs):
    """Inputs that stay at their source, such as host memory, and are moved to a device in parts."""

    def __init__(self, source: Tensor, device: torch.device) -> None:
        super().__init__(source.shape, source.dtype, device)
        self.source = source

    def taken(self, index: npt.NDArray[np.int64]) -> Tensor:
        part = self.source[torch.from_numpy(index)]
        # Only copies from pinned memory overlap with computation.
        return brought(part.pin_memory() if self.device.type == "cuda" else part, self.device)


def _whole(value: Any) -> Any:
    if isinstance(value, PartedInputs):
        return value.whole()
    return type(value)(map(_whole, value)) if type(value) in (list, tuple) else value
