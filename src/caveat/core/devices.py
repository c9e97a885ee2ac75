"""Devices that compute: found by name, and what is brought there and taken home again.

What is kept on disk, sent or handed to a user lies on the CPU. Nothing here starts a device before it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import ConfigurationError
from .tensors import Payload

CPU = torch.device("cpu")
KEY = "engine.device"
EXPECTED = "expected cpu, auto, cuda, cuda:N or mps"
AUTO = ("cuda", "mps")
"""What "auto" is, the first of them that is there; else the CPU."""
Value = TypeVar("Value")


def find_device(name: str, start: bool = True) -> torch.device:
    """The device of that name, with its number where it has one; "auto" is the first GPU if there is any.

    The device is started and asked for one number, unless told not to `start` it: a process that has started CUDA
    cannot be forked any more. Raises ConfigurationError, in one sentence, for a device that there is not.
    """
    if name == "auto":
        name = next((kind for kind in AUTO if _counted(kind)), "cpu")
    kind, number = _parts(name)
    if kind == "cpu":
        return CPU
    count = _counted(kind)
    if not count:
        raise _refused(name, f"torch {torch.__version__} finds no such device on this machine; {EXPECTED}")
    if number is not None and number >= count:
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise _refused(name, f"this machine has {there}")
    device = torch.device(kind, number or 0)
    if kind == "cuda":
        # Read when cuBLAS begins: without it, sums of products are not the same every time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if start:
        try:
            torch.zeros(1, device=device).cpu()
        except Exception as error:  # drivers and backends raise what they like
            raise _refused(name, f"the device does not start: {str(error).splitlines()[0]}") from error
    return device


def _parts(name: str) -> tuple[str, int | None]:
    """The kind of a device and its number. Raises ConfigurationError for what names none."""
    found = re.fullmatch(r"([a-z]+)(?::(\d{1,3}))?", name)
    if found is None or (found[1] in ("cpu", "mps") and found[2] is not None):
        raise _refused(name, EXPECTED)
    return found[1], None if found[2] is None else int(found[2])


def _refused(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{{key}} = {name!r}: {why}", KEY)


def _counted(kind: str) -> int:
    """How many devices of a kind this machine has, as far as that shows without starting one."""
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return 0
    available, count = getattr(module, "is_available", None), getattr(module, "device_count", None)
    if kind == "cpu" or available is None or not available():
        return 0
    return int(count()) if count is not None else 1


def siblings(device: torch.device, name: str) -> list[torch.device]:
    """The devices over which workers are spread: all of its kind if the name has no number, as "cuda" has none."""
    if device.type == "cpu" or ":" in name:
        return [device]
    return [torch.device(device.type, number) for number in range(_counted(device.type))]


def described(device: torch.device) -> str:
    """What a device is called by who made it, such as "NVIDIA H100"; its type where nobody says."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None else device.type


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
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # costs time, and nothing here reads what nobody has written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        memory.fill_uninitialized_memory = filled


def brought(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, without waiting until it is there where that is safe."""
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
