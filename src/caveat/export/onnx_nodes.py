"""An ONNX graph, and nodes for torch's layers and for operators that only move values."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .recorded_program import Size

TYPES = {
    torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL",
    torch.uint8: "UINT8", torch.int8: "INT8", torch.float16: "FLOAT16",
}  # fmt: skip
"""ONNX names of torch's types."""


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
    """A graph to which steps add nodes and constants."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper

        self.helper, self.types = helper, TensorProto.DataType
        self.nodes: list[Any] = []
        self.constants: dict[Any, str] = {}
        self.arrays: list[tuple[str, NDArray[Any]]] = []
        self.shares: dict[str, tuple[str, str]] = {}
        """The numerator and the denominator of the softmax, by the result of its log-softmax."""
        self._sizes: dict[Size, str] = {}
        self._count = 0

    def type_of(self, dtype: torch.dtype) -> int:
        return int(self.types.Value(TYPES[dtype]))

    def new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        outputs = [self.new() for _ in range(count)]
        self.nodes.append(self.helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def array(self, values: NDArray[Any]) -> str:
        values = np.array(values, order="C")  # ascontiguousarray would turn scalars into vectors
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
        """Return the name of a tensor or a number, cast to a type."""
        if not isinstance(value, Ref):
            return self.number(value, dtype)
        if value.dtype == dtype:
            return value.name
        if value.constant is not None and value.constant.shape == value.shape:
            return self.tensor(value.constant.to(dtype))
        return self.add("Cast", value.name, to=self.type_of(dtype))

    def shape(self, sizes: Sequence[int | Size]) -> str:
        """Return the name of a shape, which may contain batch sizes."""
        if not any(isinstance(size, Size) for size in sizes):
            return self.integers(*(int(size) for size in sizes))  # type: ignore[arg-type]
        return self.add("Concat", *(self.size(size) for size in sizes), axis=0)

    def size(self, size: int | Size) -> str:
        """Return the name of a tensor (1,) that holds a size."""
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


LAST = 2**63 - 1


def product(graph: Graph, out: Ref, a: Any, b: Any) -> str:
    return graph.add("MatMul", a.name, b.name)


def product_and(graph: Graph, out: Ref, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> str:
    if a.ndim == 2:
        return graph.add("Gemm", a.name, b.name, c.name, alpha=float(alpha), beta=float(beta))
    found = graph.add("MatMul", a.name, b.name)
    if alpha != 1:
        found = graph.add("Mul", found, graph.number(alpha, out.dtype))
    added = c.name if beta == 1 else graph.add("Mul", c.name, graph.number(beta, out.dtype))
    return graph.add("Add", found, added)


def gelu(graph: Graph, out: Ref, x: Any, approximate: str = "none") -> str:
    def number(value: float) -> str:
        return graph.number(value, out.dtype)

    if approximate == "tanh":
        cubed = graph.add("Mul", graph.add("Mul", x.name, graph.add("Mul", x.name, x.name)), number(0.044715))
        inner = graph.add("Tanh", graph.add("Mul", graph.add("Add", x.name, cubed), number(math.sqrt(2 / math.pi))))
    else:
        inner = graph.add("Erf", graph.add("Div", x.name, number(math.sqrt(2))))
    return graph.add("Mul", graph.add("Mul", x.name, graph.add("Add", inner, number(1))), number(0.5))


def softmax(kind: str) -> Callable[..., str]:
    """Return a step for softmax or log-softmax; along axes other than the last, it needs no transposition."""

    def step(graph: Graph, out: Ref, x: Any, dim: int, half: bool = False) -> str:
        if dim % x.ndim == x.ndim - 1:
            return graph.add(kind, x.name, axis=dim)
        axis = graph.integers(dim)
        below = graph.add("Sub", x.name, graph.add("ReduceMax", x.name, axis, keepdims=1))
        weights = graph.add("Exp", below)
        norm = graph.add("ReduceSum", weights, axis, keepdims=1)
        if kind == "Softmax":
            return graph.add("Div", weights, norm)
        found = graph.add("Sub", below, graph.add("Log", norm))
        graph.shares[found] = weights, norm
        return found

    return step


def exponential(graph: Graph, out: Ref, x: Any) -> str:
    """Return exp(x); for a log-softmax, the softmax from existing exponentials."""
    name = graph.cast(x, out.dtype)
    return graph.add("Div", *graph.shares[name]) if name in graph.shares else graph.add("Exp", name)


def convolved(
    graph: Graph, out: Ref, x: Any, weight: Any, bias: Any, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> str:  # fmt: skip
    inputs = [x.name, weight.name, *([] if bias is None else [bias.name])]
    space = x.ndim - 2
    stride, padding, dilation = (list(each) * (space if len(each) == 1 else 1) for each in (stride, padding, dilation))
    shared = {"strides": stride, "pads": padding * 2, "dilations": dilation, "group": groups}
    if transposed:
        return graph.add("ConvTranspose", *inputs, output_padding=list(output_padding), **shared)
    return graph.add("Conv", *inputs, **shared)


def pooled(
    graph: Graph, out: Ref, x: Any, kernel: list[int], stride: list[int] = [], padding: list[int] = [0],  # noqa: B006
    dilation: list[int] = [1], ceil_mode: bool = False,  # noqa: B006
) -> list[str]:  # fmt: skip
    kernel, stride, padding, dilation = (_pair(each) for each in (kernel, stride or kernel, padding, dilation))
    found = graph.add(
        "MaxPool", x.name, kernel_shape=kernel, strides=stride, pads=padding * 2, dilations=dilation,
        ceil_mode=int(ceil_mode),
    )  # fmt: skip
    return [found, ""]


def pooled_evenly(
    graph: Graph, out: Ref, x: Any, kernel: list[int], stride: list[int] = [], padding: list[int] = [0],  # noqa: B006
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> str:  # fmt: skip
    if divisor_override is not None:
        raise NotImplementedError("avg_pool2d with another divisor is not supported")
    kernel, stride, padding = (_pair(each) for each in (kernel, stride or kernel, padding))
    return graph.add(
        "AveragePool", x.name, kernel_shape=kernel, strides=stride, pads=padding * 2, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip


def _pair(sizes: list[int]) -> list[int]:
    return list(sizes) * (2 if len(sizes) == 1 else 1)


def reshaped(graph: Graph, out: Ref, x: Any, *sizes: Any, **kwargs: Any) -> str:
    open_ = [i for i, size in enumerate(out.shape) if isinstance(size, Size)]
    if len(open_) == 1:
        shape = [-1 if isinstance(size, Size) else size for size in out.shape]
        return graph.add("Reshape", x.name, graph.integers(*shape))
    return graph.add("Reshape", x.name, graph.shape(out.shape))


def permuted(graph: Graph, out: Ref, x: Any, dims: list[int]) -> str:
    return graph.add("Transpose", x.name, perm=[dim % x.ndim for dim in dims])


def transposed(graph: Graph, out: Ref, x: Any, a: int, b: int) -> str:
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return graph.add("Transpose", x.name, perm=order)


def turned(graph: Graph, out: Ref, x: Any) -> str:
    return x.name if x.ndim < 2 else transposed(graph, out, x, 0, 1)


def unsqueezed(graph: Graph, out: Ref, x: Any, dim: int) -> str:
    return graph.add("Unsqueeze", x.name, graph.integers(dim))


def expanded(graph: Graph, out: Ref, x: Any, *sizes: Any, **kwargs: Any) -> str:
    return graph.add("Expand", x.name, graph.shape(out.shape))


def repeated(graph: Graph, out: Ref, x: Any, repeats: list[Any]) -> str:
    name = x.name
    if len(repeats) > x.ndim:
        name = graph.add("Unsqueeze", name, graph.integers(*range(len(repeats) - x.ndim)))
    return graph.add("Tile", name, graph.shape(repeats))


def joined(graph: Graph, out: Ref, xs: list[Any], dim: int = 0) -> str:
    names = [graph.cast(x, out.dtype) for x in xs if x.shape != (0,)]
    return names[0] if len(names) == 1 else graph.add("Concat", *names, axis=dim)


def stacked(graph: Graph, out: Ref, xs: list[Any], dim: int = 0) -> str:
    dim = dim % out.ndim
    names = [graph.add("Unsqueeze", graph.cast(x, out.dtype), graph.integers(dim)) for x in xs]
    return graph.add("Concat", *names, axis=dim)


def selected(graph: Graph, out: Ref, x: Any, dim: int, index: int) -> str:
    return graph.add("Gather", x.name, graph.number(index, torch.int64), axis=dim)


def sliced(graph: Graph, out: Ref, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    end = LAST if end is None else end
    return graph.add(
        "Slice", x.name, graph.size(start or 0), graph.size(end), graph.integers(dim % x.ndim), graph.integers(step)
    )


def _parts(graph: Graph, x: Any, sizes: list[Any], dim: int) -> list[str]:
    found, start = [], 0
    for size in sizes:
        if isinstance(size, Size):
            raise NotImplementedError("an operation on parts of the batch is not supported")
        found.append(sliced(graph, x, x, dim, start, start + size))
        start += size
    return found


def split(graph: Graph, out: Ref, x: Any, size: Any, dim: int = 0) -> list[str]:
    total = x.shape[dim]
    if size == total:
        return [x.name]
    if isinstance(total, Size) or isinstance(size, Size):
        raise NotImplementedError("an operation on parts of the batch is not supported")
    return _parts(graph, x, [min(size, total - start) for start in range(0, total, size)], dim)


def split_in(graph: Graph, out: Ref, x: Any, sizes: list[Any], dim: int = 0) -> list[str]:
    return _parts(graph, x, sizes, dim)


def unbound(graph: Graph, out: Ref, x: Any, dim: int = 0) -> list[str]:
    return [selected(graph, out, x, dim, i) for i in range(x.shape[dim])]


def rows_by(graph: Graph, out: Ref, x: Any, dim: int, index: Any) -> str:
    return graph.add("Gather", x.name, index.name, axis=dim)


def embedded(graph: Graph, out: Ref, weight: Any, index: Any, *rest: Any) -> str:
    return graph.add("Gather", weight.name, index.name, axis=0)


def gathered(graph: Graph, out: Ref, x: Any, dim: int, index: Any, **rest: Any) -> str:
    return graph.add("GatherElements", x.name, index.name, axis=dim)


def indexed(graph: Graph, out: Ref, x: Any, indices: list[Any]) -> str:
    known = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(known) != 1 or known[0][1].dtype == torch.bool:
        raise NotImplementedError("an index in several dimensions is not supported")
    return graph.add("Gather", x.name, known[0][1].name, axis=known[0][0])


def added_at(graph: Graph, out: Ref, x: Any, dim: int, index: Any, source: Any) -> str:
    return graph.add("ScatterElements", x.name, index.name, graph.cast(source, out.dtype), axis=dim, reduction="add")


def flipped(graph: Graph, out: Ref, x: Any, dims: list[int]) -> str:
    count = len(dims)
    ends = graph.integers(*[-(2**62)] * count)
    return graph.add(
        "Slice", x.name, graph.integers(*[-1] * count), ends, graph.integers(*dims), graph.integers(*[-1] * count)
    )


def padded(graph: Graph, out: Ref, x: Any, pad: list[int], value: float = 0) -> str:
    before, after = [0] * x.ndim, [0] * x.ndim
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return graph.add("Pad", x.name, graph.integers(*before, *after), graph.number(value, out.dtype))


def same(graph: Graph, out: Ref, x: Any, **kwargs: Any) -> str:
    return str(x.name)


def of_type(graph: Graph, out: Ref, x: Any, **kwargs: Any) -> str:
    return graph.cast(x, out.dtype)


def copied(graph: Graph, out: Ref, x: Any, source: Any, blocking: bool = False) -> str:
    name = graph.cast(source, out.dtype)
    return name if source.shape == out.shape else graph.add("Expand", name, graph.shape(out.shape))


def filled_like(value: float | None) -> Callable[..., str]:
    def step(graph: Graph, out: Ref, x: Any, given: float = 0, **kwargs: Any) -> str:
        number = graph.number(given if value is None else value, out.dtype)
        return graph.add("Expand", number, graph.shape(out.shape))

    return step
