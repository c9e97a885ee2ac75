"""Layers of torch in ONNX: see `onnx_steps`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .onnx_builder import Graph, Ref


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
    """Softmax or its logarithm; along any axis but the last in operators that need no other layout of the tensor."""

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
    """Of the logarithm of a softmax the softmax, for which there are exponentials already."""
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
        raise NotImplementedError("avg_pool2d with another divisor")
    kernel, stride, padding = (_pair(each) for each in (kernel, stride or kernel, padding))
    return graph.add(
        "AveragePool", x.name, kernel_shape=kernel, strides=stride, pads=padding * 2, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip


def _pair(sizes: list[int]) -> list[int]:
    return list(sizes) * (2 if len(sizes) == 1 else 1)
