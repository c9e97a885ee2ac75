"""Translation of torch's operators to ONNX: functions of the graph, the result's type and shape, and arguments.

Each function adds nodes to the graph and returns the name of the result, or names of several results.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from . import onnx_nodes as nodes
from .onnx_nodes import Graph, Ref

Step = Callable[..., Any]


def both(graph: Graph, a: Any, b: Any, dtype: torch.dtype | None = None) -> tuple[str, str]:
    """Return two operands with a common type, by default torch's result type."""
    dtype = dtype or _common(a, b)
    return graph.cast(a, dtype), graph.cast(b, dtype)


def _common(a: Any, b: Any) -> torch.dtype:
    samples = [torch.empty((1,) * each.ndim, dtype=each.dtype) if hasattr(each, "dtype") else each for each in (a, b)]
    return torch.result_type(*samples)


def binary(kind: str) -> Step:
    def step(graph: Graph, out: Ref, a: Any, b: Any, alpha: float = 1) -> str:
        x, y = both(graph, a, b, out.dtype)
        if out.dtype == torch.bool:
            return graph.add({"Mul": "And", "Add": "Or", "Max": "Or", "Min": "And"}[kind], x, y)
        if alpha != 1:
            y = graph.add("Mul", y, graph.number(alpha, out.dtype))
        return graph.add(kind, x, y)

    return step


def rsub(graph: Graph, out: Ref, a: Any, b: Any, alpha: float = 1) -> str:
    return str(binary("Sub")(graph, out, b, a, alpha))


def compared(kind: str, negated: bool = False) -> Step:
    def step(graph: Graph, out: Ref, a: Any, b: Any) -> str:
        x, y = both(graph, a, b)
        if _common(a, b) == torch.bool:
            x, y = (graph.add("Cast", each, to=graph.type_of(torch.int32)) for each in (x, y))
        found = graph.add(kind, x, y)
        return graph.add("Not", found) if negated else found

    return step


def unary(kind: str, **attributes: Any) -> Step:
    def step(graph: Graph, out: Ref, x: Any) -> str:
        return graph.add(kind, graph.cast(x, out.dtype), **attributes)

    return step


def asked(kind: str) -> Step:
    """Return a step for an elementwise predicate."""

    def step(graph: Graph, out: Ref, x: Any) -> str:
        return graph.add(kind, x.name)

    return step


def logical(kind: str) -> Step:
    def step(graph: Graph, out: Ref, a: Any, b: Any) -> str:
        if out.dtype != torch.bool:
            raise NotImplementedError("bitwise operations on integers are not supported")
        return graph.add(kind, *both(graph, a, b, torch.bool))

    return step


def divided(graph: Graph, out: Ref, a: Any, b: Any, rounding_mode: str | None = None) -> str:
    x, y = both(graph, a, b, out.dtype)
    found = graph.add("Div", x, y)
    if rounding_mode == "floor" and out.dtype.is_floating_point:
        return graph.add("Floor", found)
    if rounding_mode is not None:
        raise NotImplementedError(f"division with rounding_mode = {rounding_mode!r} is not supported for {out.dtype}")
    return found


def remainder(graph: Graph, out: Ref, a: Any, b: Any) -> str:
    return graph.add("Mod", *both(graph, a, b, out.dtype))


def shifted_right(graph: Graph, out: Ref, a: Any, b: int) -> str:
    return graph.add("Div", a.name, graph.number(2**b, out.dtype))  # only for non-negative values


def square(graph: Graph, out: Ref, x: Any) -> str:
    return graph.add("Mul", x.name, x.name)


def power(graph: Graph, out: Ref, x: Any, exponent: Any) -> str:
    name = graph.cast(x, out.dtype)
    if exponent == 2:
        return graph.add("Mul", name, name)
    return graph.add("Pow", name, graph.cast(exponent, out.dtype))


def rsqrt(graph: Graph, out: Ref, x: Any) -> str:
    return graph.add("Reciprocal", graph.add("Sqrt", x.name))


def clamped(graph: Graph, out: Ref, x: Any, low: Any = None, high: Any = None) -> str:
    found = graph.cast(x, out.dtype)
    if low is not None:
        found = graph.add("Max", found, graph.cast(low, out.dtype))
    return found if high is None else graph.add("Min", found, graph.cast(high, out.dtype))


def clamped_above(graph: Graph, out: Ref, x: Any, high: Any) -> str:
    return clamped(graph, out, x, None, high)


def without_nan(graph: Graph, out: Ref, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> str:
    about = torch.finfo(out.dtype)
    found = graph.add("Where", graph.add("IsNaN", x.name), graph.number(nan or 0.0, out.dtype), x.name)
    # Max and Min are equivalent for finite numbers.
    found = (
        graph.add("Min", found, graph.number(about.max if posinf is None else posinf, out.dtype))
        if (posinf is None or posinf == about.max or posinf == math.inf)
        else _infinite(graph, out, found, posinf, True)
    )
    if neginf is None or neginf == about.min or neginf == -math.inf:
        return graph.add("Max", found, graph.number(about.min if neginf is None else neginf, out.dtype))
    return _infinite(graph, out, found, neginf, False)


def _infinite(graph: Graph, out: Ref, name: str, value: float, above: bool) -> str:
    where = graph.add("IsInf", name, detect_negative=int(not above), detect_positive=int(above))
    return graph.add("Where", where, graph.number(value, out.dtype), name)


def chosen(graph: Graph, out: Ref, mask: Any, a: Any, b: Any) -> str:
    return graph.add("Where", mask.name, *both(graph, a, b, out.dtype))


def masked(graph: Graph, out: Ref, x: Any, mask: Any, value: Any) -> str:
    return graph.add("Where", mask.name, graph.cast(value, out.dtype), x.name)


def _axes(x: Any, dims: Any) -> list[int]:
    dims = range(x.ndim) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    return [dim % x.ndim for dim in dims]


def reduced(kind: str) -> Step:
    def step(graph: Graph, out: Ref, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> str:
        axes = _axes(x, dim)
        sizes = [x.shape[axis] for axis in axes]
        if sizes == [1] * len(sizes):
            found = graph.cast(x, out.dtype)
            return found if keepdim else graph.add("Squeeze", found, graph.integers(*axes))
        if kind == "ReduceMean" and out.dtype == torch.float32 and x.ndim > 3 and axes == [*range(2, x.ndim)]:
            found = graph.add("GlobalAveragePool", graph.cast(x, out.dtype))  # for any layout of maps
            return found if keepdim else graph.add("Squeeze", found, graph.integers(*axes))
        if kind == "ReduceSum" and x.dtype == torch.bool and _few(sizes):
            counted = graph.add(kind, graph.cast(x, torch.float32), graph.integers(*axes), keepdims=int(keepdim))
            return graph.add("Cast", counted, to=graph.type_of(out.dtype))  # much faster than integers
        return graph.add(kind, graph.cast(x, out.dtype), graph.integers(*axes), keepdims=int(keepdim))

    return step


def _few(sizes: list[Any]) -> bool:
    """Return whether float32 represents counts up to the product of sizes exactly."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) < 2**24


def whether(kind: str) -> Step:
    """Return a step for `any` or `all`."""

    def step(graph: Graph, out: Ref, x: Any, dim: Any = None, keepdim: bool = False) -> str:
        found = (
            graph.cast(x, torch.int32)
            if x.dtype == torch.bool
            else graph.add("Cast", graph.cast(x, torch.bool), to=graph.type_of(torch.int32))
        )
        found = graph.add(kind, found, graph.integers(*_axes(x, dim)), keepdims=int(keepdim))
        return graph.add("Cast", found, to=graph.type_of(torch.bool))

    return step


def place_of(kind: str) -> Step:
    def step(graph: Graph, out: Ref, x: Any, dim: int | None = None, keepdim: bool = False) -> str:
        if dim is None:
            raise NotImplementedError("argmax or argmin over all dimensions is not supported")
        return graph.add(kind, x.name, axis=dim, keepdims=int(keepdim))

    return step


def extreme(kind: str, place: str) -> Step:
    def step(graph: Graph, out: Ref, x: Any, dim: int, keepdim: bool = False) -> list[str]:
        value = graph.add(kind, x.name, graph.integers(dim), keepdims=int(keepdim))
        return [value, graph.add(place, x.name, axis=dim, keepdims=int(keepdim))]

    return step


def summed_up(graph: Graph, out: Ref, x: Any, dim: int, dtype: Any = None) -> str:
    return graph.add("CumSum", graph.cast(x, out.dtype), graph.number(dim, torch.int64))


def sorted_along(
    graph: Graph, out: Ref, x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> list[str]:
    """Sort with TopK, which is stable."""
    size = graph.add("Gather", graph.add("Shape", x.name), graph.integers(dim % x.ndim), axis=0)
    return graph.several("TopK", 2, x.name, size, axis=dim, largest=int(descending))


STEPS: dict[str, Step] = {
    "add": binary("Add"), "sub": binary("Sub"), "mul": binary("Mul"), "rsub": rsub, "div": divided,
    "maximum": binary("Max"), "minimum": binary("Min"), "remainder": remainder, "__rshift__": shifted_right,
    "bitwise_right_shift": shifted_right, "square": square, "pow": power, "rsqrt": rsqrt, "neg": unary("Neg"),
    "abs": unary("Abs"), "exp": nodes.exponential, "log": unary("Log"), "sqrt": unary("Sqrt"), "erf": unary("Erf"),
    "reciprocal": unary("Reciprocal"), "sigmoid": unary("Sigmoid"), "tanh": unary("Tanh"), "relu": unary("Relu"),
    "sin": unary("Sin"), "cos": unary("Cos"), "sign": unary("Sign"), "round": unary("Round"), "floor": unary("Floor"),
    "ceil": unary("Ceil"), "gelu": nodes.gelu, "_softmax": nodes.softmax("Softmax"),
    "_log_softmax": nodes.softmax("LogSoftmax"), "clamp": clamped, "clamp_min": clamped, "clamp_max": clamped_above,
    "nan_to_num": without_nan, "where": chosen, "masked_fill": masked, "eq": compared("Equal"),
    "ne": compared("Equal", negated=True), "lt": compared("Less"), "le": compared("LessOrEqual"),
    "gt": compared("Greater"), "ge": compared("GreaterOrEqual"), "isnan": asked("IsNaN"), "isinf": asked("IsInf"),
    "logical_not": asked("Not"), "bitwise_not": asked("Not"), "logical_and": logical("And"),
    "bitwise_and": logical("And"), "__and__": logical("And"), "logical_or": logical("Or"), "bitwise_or": logical("Or"),
    "__or__": logical("Or"), "logical_xor": logical("Xor"), "bitwise_xor": logical("Xor"), "sum": reduced("ReduceSum"),
    "mean": reduced("ReduceMean"), "amax": reduced("ReduceMax"), "amin": reduced("ReduceMin"),
    "prod": reduced("ReduceProd"), "any": whether("ReduceMax"), "all": whether("ReduceMin"),
    "argmax": place_of("ArgMax"), "argmin": place_of("ArgMin"), "max": extreme("ReduceMax", "ArgMax"),
    "min": extreme("ReduceMin", "ArgMin"), "cumsum": summed_up, "sort": sorted_along, "view": nodes.reshaped,
    "_unsafe_view": nodes.reshaped, "reshape": nodes.reshaped, "squeeze": nodes.reshaped, "permute": nodes.permuted,
    "transpose": nodes.transposed, "t": nodes.turned, "unsqueeze": nodes.unsqueezed, "expand": nodes.expanded,
    "repeat": nodes.repeated, "cat": nodes.joined, "stack": nodes.stacked, "select": nodes.selected,
    "slice": nodes.sliced, "split": nodes.split, "split_with_sizes": nodes.split_in, "unbind": nodes.unbound,
    "index_select": nodes.rows_by, "embedding": nodes.embedded, "gather": nodes.gathered, "index": nodes.indexed,
    "scatter_add": nodes.added_at, "flip": nodes.flipped, "constant_pad_nd": nodes.padded, "clone": nodes.same,
    "detach": nodes.same, "alias": nodes.same, "contiguous": nodes.same, "lift_fresh_copy": nodes.same,
    "_to_copy": nodes.of_type, "copy": nodes.copied, "zeros_like": nodes.filled_like(0),
    "ones_like": nodes.filled_like(1), "empty_like": nodes.filled_like(0), "full_like": nodes.filled_like(None),
    "fill": nodes.filled_like(None), "mm": nodes.product, "bmm": nodes.product, "matmul": nodes.product,
    "mv": nodes.product, "dot": nodes.product, "addmm": nodes.product_and, "baddbmm": nodes.product_and,
    "convolution": nodes.convolved, "max_pool2d_with_indices": nodes.pooled, "avg_pool2d": nodes.pooled_evenly,
}  # fmt: skip
"""Steps by the name of torch's operator."""
