"""Inputs that are taken part by part, so that no split has to lie whole where it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .devices import brought

PART = 256
"""Inputs that are taken together where all of them are needed, one part after the other."""


class PartedInputs:
    """Model inputs (N, ...) that are taken in parts: `x[index]` and the parts of `torch.split` are tensors.

    Any other function or method of a tensor takes all of them into memory.
    """

    requires_grad = False
    layout = torch.strided
    kept_on = torch.device("cpu")
    """Where positions have to be for inputs to be taken without waiting for them."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    def taken(self, index: npt.NDArray[np.int64]) -> Tensor:
        """The inputs at positions (n,), as a tensor (n, ...) on `device`."""
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
        """The inputs in parts of so many, each taken when it is its turn."""
        if dim:
            raise ValueError("inputs that are read as needed are split along their first axis alone")
        return Parts(self, size)

    def whole(self) -> Tensor:
        """All inputs, in memory."""
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
    """Parts of inputs, of which each is taken when it is asked for."""

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
    """Inputs that stay in the host's memory, or where they are read from, and come to a device part by part."""

    def __init__(self, source: Tensor, device: torch.device) -> None:
        super().__init__(source.shape, source.dtype, device)
        self.source = source

    def taken(self, index: npt.NDArray[np.int64]) -> Tensor:
        part = self.source[torch.from_numpy(index)]
        # Only from pinned memory is it brought while the device computes.
        return brought(part.pin_memory() if self.device.type == "cuda" else part, self.device)


def _whole(value: Any) -> Any:
    if isinstance(value, PartedInputs):
        return value.whole()
    return type(value)(map(_whole, value)) if type(value) in (list, tuple) else value
