"""A graph of ONNX that nodes and constants are added to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .program import Size

TYPES = {
    torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL",
    torch.uint8: "UINT8", torch.int8: "INT8", torch.float16: "FLOAT16",
}  # fmt: skip
"""ONNX's names of torch's types."""


class Ref(NamedTuple):
    """A tensor of the graph."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | Size, ...]
    constant: Tensor | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Graph:
    """What steps add nodes and constants to."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper

        self.helper, self.types = helper, TensorProto.DataType
        self.nodes: list[Any] = []
        self.constants: dict[Any, str] = {}
        self.arrays: list[tuple[str, NDArray[Any]]] = []
        self.shares: dict[str, tuple[str, str]] = {}
        """By logarithms of a softmax, what it is the quotient of."""
        self._sizes: dict[Size, str] = {}
        self._count = 0

    def type_of(self, dtype: torch.dtype) -> int:
        return int(self.types.Value(TYPES[dtype]))

    def new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output, by its name."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        outputs = [self.new() for _ in range(count)]
        self.nodes.append(self.helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def array(self, values: NDArray[Any]) -> str:
        values = np.array(values, order="C")  # ascontiguousarray would make scalars vectors
        key = values.dtype.str, values.shape, values.tobytes()
        if key not in self.constants:
            self.constants[key] = f"c{len(self.constants)}"
            self.arrays.append((self.constants[key], values))
        return self.constants[key]

    def tensor(self, values: Tensor) -> str:
        return self.array(values.numpy())

    def number(self, value: float, dtype: torch.dtype) -> str:
        return self.tensor(torch.tensor(value, dtype=dtype))

    def integers(self, *values: int) -> str:
        return self.array(np.array(values, dtype=np.int64))

    def cast(self, value: Any, dtype: torch.dtype) -> str:
        """The name of a tensor or number of a type."""
        if not isinstance(value, Ref):
            return self.number(value, dtype)
        if value.dtype == dtype:
            return value.name
        if value.constant is not None and value.constant.shape == value.shape:
            return self.tensor(value.constant.to(dtype))
        return self.add("Cast", value.name, to=self.type_of(dtype))

    def shape(self, sizes: Sequence[int | Size]) -> str:
        """The name of a shape, some of which may be sizes of the batch."""
        if not any(isinstance(size, Size) for size in sizes):
            return self.integers(*(int(size) for size in sizes))  # type: ignore[arg-type]
        return self.add("Concat", *(self.size(size) for size in sizes), axis=0)

    def size(self, size: int | Size) -> str:
        """The name of a tensor (1,) of a size."""
        if not isinstance(size, Size):
            return self.integers(size)
        if size not in self._sizes:
            found = self._sizes.get(Size(1, 0)) or self.add("Shape", "inputs", start=0, end=1)
            self._sizes[Size(1, 0)] = found
            if size.factor != 1:
                found = self.add("Mul", found, self.integers(size.factor))
            if size.summand:
                found = self.add("Add", found, self.integers(size.summand))
            self._sizes[size] = found
        return self._sizes[size]
