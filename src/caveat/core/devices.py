"""Devices that compute: found by name, and what is brought there and taken home again; and what else a machine has.

What is kept on disk, sent or handed to a user lies on the CPU. Nothing here starts a device before it is asked for.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import ConfigurationError, message_of, short_repr
from .tensors import Payload

CPU = torch.device("cpu")
KEY = "engine.device"
EXPECTED = "expected cpu, auto, cuda, cuda:N or mps"
AUTO = ("cuda", "mps")
"""What "auto" is, the first of them that is there; else the CPU."""
Value = TypeVar("Value")


def find_device(name: str, start: bool = True, key: str = KEY) -> torch.device:
    """The device of that name, with its number where it has one; "auto" is the first GPU if there is any.

    The device is started and asked for one number, unless told not to `start` it: a process that has started CUDA
    cannot be forked any more. Raises ConfigurationError, in one sentence, for a device that there is not.
    """
    if name == "auto":
        name = next((kind for kind in AUTO if counted(kind)), "cpu")
    kind, number = _parts(name, key)
    if kind == "cpu":
        return CPU
    count = counted(kind)
    if not count:
        raise _refused(name, f"torch {torch.__version__} finds no such device on this machine; {EXPECTED}", key)
    if number is not None and number >= count:
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise _refused(name, f"this machine has {there}", key)
    device = torch.device(kind, number or 0)
    if kind == "cuda":
        # Read when cuBLAS begins: without it, sums of products are not the same every time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if start:
        try:
            torch.zeros(1, device=device).cpu()
        except Exception as error:  # drivers and backends raise what they like
            raise _refused(name, f"the device does not start: {message_of(error)}", key) from error
    return device


def _parts(name: str, key: str = KEY) -> tuple[str, int | None]:
    """The kind of a device and its number. Raises ConfigurationError for what names none."""
    found = re.fullmatch(r"([a-z]+)(?::(\d{1,3}))?", name)
    if found is None or (found[1] in ("cpu", "mps") and found[2] is not None):
        raise _refused(name, EXPECTED, key)
    return found[1], None if found[2] is None else int(found[2])


def _refused(name: str, why: str, key: str) -> ConfigurationError:
    return ConfigurationError(f"{{key}} = {short_repr(name)}: {why}", key)


def known_kinds() -> list[str]:
    """The kinds of GPU and the like that torch may find here, without asking any of them."""
    found = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return [*AUTO, *([] if found is None or found.type in AUTO else [found.type])]


def counted(kind: str) -> int:
    """How many devices of a kind this machine has, as far as that shows without starting one."""
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return 0
    # Not is_available, which begins to start CUDA, so that the process can have no workers any more.
    count = getattr(module, "device_count", None)
    return 0 if kind == "cpu" or count is None else int(count())


def find_devices(name: str, workers: int = 1, key: str = KEY) -> tuple[torch.device, ...]:
    """The devices over which so many workers are spread: all of a kind if the name has no number, as "cuda" has none.

    None is started where there are several workers, each of which starts its own. Raises what `find_device` does.
    """
    first = find_device(name, workers == 1, key)
    if first.type == "cpu" or ":" in name:
        return (first,)
    return tuple(torch.device(first.type, number) for number in range(min(workers, counted(first.type))))


def check_name(name: str, key: str = KEY) -> None:
    """Raises ConfigurationError for what is no name of a device, whether there is one or not."""
    if name != "auto":
        _parts(name, key)


def described(device: torch.device) -> str:
    """What a device is called by who made it, such as "NVIDIA H100"; its type where nobody says."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None else device.type


def versions(device: torch.device) -> dict[str, str]:
    """The versions of what computes on a device."""
    found: dict[str, Any] = {"torch": torch.__version__}
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda or torch.version.hip, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return {name: str(value) for name, value in found.items()}


def has_double(device: torch.device) -> bool:
    """Whether a device computes in float64, as Apple's do not."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        return torch.ones(1, dtype=torch.float64, device=device).add(1).dtype == torch.float64
    except (TypeError, RuntimeError):
        return False


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where nobody says."""
    module = torch.get_device_module(device)
    if (info := getattr(module, "mem_get_info", None)) is not None:
        return int(info(device)[0])
    if (most := getattr(module, "recommended_max_memory", None)) is not None:
        return int(most() - module.driver_allocated_memory())
    return None


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Have a device compute the same bits every time; the CPU does so anyway.

    Meanwhile torch raises RuntimeError for operations that the device cannot repeat.
    """
    if device.type == "cpu":
        yield
        return
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    # The same as use_deterministic_algorithms, without the seconds in which that imports torch's compiler.
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False  # costs time, and nothing here reads what nobody has written
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, without waiting until it is there where that is safe."""
    if tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=device.type == "cuda")


def brought_all(payload: Payload, device: torch.device) -> Payload:
    """Groups of tensors on a device."""
    return {group: {name: brought(t, device) for name, t in tensors.items()} for group, tensors in payload.items()}


def home(value: Value) -> Value:
    """A tensor, or tensors in dictionaries and dataclasses such as predictions, on the CPU."""
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
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: float, what: str, key: str = "") -> None:
    """Raises ConfigurationError if something, in words, takes more bytes than this machine has of memory."""
    if needed > memory():
        told = f"{what}: {needed / 1e9:,.0f} GB of memory, this machine has {memory() / 1e9:,.0f}"
        raise ConfigurationError(told, key)


def cache_folder() -> Path:
    """$CAVEAT_CACHE, or the user's own folder for caches."""
    own = os.environ.get("CAVEAT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "caveat"
