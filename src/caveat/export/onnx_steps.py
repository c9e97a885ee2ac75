"""What torch's operators are in ONNX: by operator a function of the graph, the result's type and shape, and arguments.

Each adds nodes to the graph and returns the name of the result, or names of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .program import Size

if TYPE_CHECKING:
    from .onnx_graph import Graph, Ref

Step = Callable[..., Any]
LAST = 2**63 - 1


def both(graph: Graph, a: Any, b: Any, dtype: torch.dtype | None = None) -> tuple[str, str]:
    """Two operands of one type, the one that torch computes with unless another is given."""
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
    """A question about each number."""

    def step(graph: Graph, out: Ref, x: Any) -> str:
        return graph.add(kind, x.name)

    return step


def logical(kind: str) -> Step:
    def step(graph: Graph, out: Ref, a: Any, b: Any) -> str:
        if out.dtype != torch.bool:
            raise NotImplementedError("bits of whole numbers")
        return graph.add(kind, *both(graph, a, b, torch.bool))

    return step


def divided(graph: Graph, out: Ref, a: Any, b: Any, rounding_mode: str | None = None) -> str:
    x, y = both(graph, a, b, out.dtype)
    found = graph.add("Div", x, y)
    if rounding_mode == "floor" and out.dtype.is_floating_point:
        return graph.add("Floor", found)
    if rounding_mode is not None:
        raise NotImplementedError("division with rounding")
    return found


def remainder(graph: Graph, out: Ref, a: Any, b: Any) -> str:
    return graph.add("Mod", *both(graph, a, b, out.dtype))


def shifted_right(graph: Graph, out: Ref, a: Any, b: int) -> str:
    return graph.add("Div", a.name, graph.number(2**b, out.dtype))  # of what is not negative


def square(graph: Graph, out: Ref, x: Any) -> str:
    return graph.add("Mul", x.name, x.name)


def power(graph: Graph, out: Ref, x: Any, exponent: Any) -> str:
    name = graph.cast(x, out.dtype)
    if exponent == 2:
        return graph.add("Mul", name, name)
    return graph.add("Pow", name, graph.cast(exponent, out.dtype))


def rsqrt(graph: Graph, out: Ref, x: Any) -> str:
    return graph.add("Reciprocal", graph.add("Sqrt", x.name))


def gelu(graph: Graph, out: Ref, x: Any, approximate: str = "none") -> str:
    def number(value: float) -> str:
        return graph.number(value, out.dtype)

    if approximate == "tanh":
        cubed = graph.add("Mul", graph.add("Mul", x.name, graph.add("Mul", x.name, x.name)), number(0.044715))
        inner = graph.add("Tanh", graph.add("Mul", graph.add("Add", x.name, cubed), number(math.sqrt(2 / math.pi))))
    else:
        inner = graph.add("Erf", graph.add("Div", x.name, number(math.sqrt(2))))
    return graph.add("Mul", graph.add("Mul", x.name, graph.add("Add", inner, number(1))), number(0.5))


def softmax(kind: str) -> Step:
    def step(graph: Graph, out: Ref, x: Any, dim: int, half: bool = False) -> str:
        return graph.add(kind, x.name, axis=dim)

    return step


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
    # Max and Min say the same of finite numbers.
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
        kept = int(keepdim)
        return graph.add(kind, graph.cast(x, out.dtype), graph.integers(*_axes(x, dim)), keepdims=kept)

    return step


def whether(kind: str) -> Step:
    """Whether any or all of some."""

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
            raise NotImplementedError("the place of the largest of all")
        return graph.add(kind, x.name, axis=dim, keepdims=int(keepdim))

    return step


def extreme(kind: str, place: str) -> Step:
    def step(graph: Graph, out: Ref, x: Any, dim: int, keepdim: bool = False) -> list[str]:
        value = graph.add(kind, x.name, graph.integers(dim), keepdims=int(keepdim))
        return [value, graph.add(place, x.name, axis=dim, keepdims=int(keepdim))]

    return step


def summed_up(graph: Graph, out: Ref, x: Any, dim: int, dtype: Any = None) -> str:
    return graph.add("CumSum", graph.cast(x, out.dtype), graph.number(dim, torch.int64))


def sorted_along(graph: Graph, out: Ref, x: Any, dim: int = -1, descending: bool = False) -> list[str]:
    size = graph.add("Gather", graph.add("Shape", x.name), graph.integers(dim % x.ndim), axis=0)
    return graph.several("TopK", 2, x.name, size, axis=dim, largest=int(descending))


def reshaped(graph: Graph, out: Ref, x: Any, *sizes: Any, **kwargs: Any) -> str:
    open_ = [i for i, size in enumerate(out.shape) if isinstance(size, Size)]
    if len(open_) == 1:
        shape = [-1 if isinstance(size, Size) else size for size in out.shape]
        return graph.add("Reshape", x.name, graph.integers(*shape))  # type: ignore[arg-type]
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
            raise NotImplementedError("parts of the batch")
        found.append(sliced(graph, x, x, dim, start, start + size))
        start += size
    return found


def split(graph: Graph, out: Ref, x: Any, size: Any, dim: int = 0) -> list[str]:
    total = x.shape[dim]
    if size == total:
        return [x.name]
    if isinstance(total, Size) or isinstance(size, Size):
        raise NotImplementedError("parts of the batch")
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
        raise NotImplementedError("an index in several dimensions")
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


def filled_like(value: float | None) -> Step:
    def step(graph: Graph, out: Ref, x: Any, given: float = 0, **kwargs: Any) -> str:
        number = graph.number(given if value is None else value, out.dtype)
        return graph.add("Expand", number, graph.shape(out.shape))

    return step


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


STEPS: dict[str, Step] = {
    "add": binary("Add"), "sub": binary("Sub"), "mul": binary("Mul"), "rsub": rsub, "div": divided,
    "maximum": binary("Max"), "minimum": binary("Min"), "remainder": remainder, "__rshift__": shifted_right,
    "bitwise_right_shift": shifted_right, "square": square, "pow": power, "rsqrt": rsqrt, "neg": unary("Neg"),
    "abs": unary("Abs"), "exp": unary("Exp"), "log": unary("Log"), "sqrt": unary("Sqrt"), "erf": unary("Erf"),
    "reciprocal": unary("Reciprocal"), "sigmoid": unary("Sigmoid"), "tanh": unary("Tanh"), "relu": unary("Relu"),
    "sin": unary("Sin"), "cos": unary("Cos"), "sign": unary("Sign"),
    "round": unary("Round"), "floor": unary("Floor"), "ceil": unary("Ceil"), "gelu": gelu,
    "_softmax": softmax("Softmax"), "_log_softmax": softmax("LogSoftmax"), "clamp": clamped, "clamp_min": clamped,
    "clamp_max": clamped_above, "nan_to_num": without_nan, "where": chosen, "masked_fill": masked,
    "eq": compared("Equal"), "ne": compared("Equal", negated=True), "lt": compared("Less"),
    "le": compared("LessOrEqual"), "gt": compared("Greater"), "ge": compared("GreaterOrEqual"),
    "isnan": asked("IsNaN"), "isinf": asked("IsInf"), "logical_not": asked("Not"), "bitwise_not": asked("Not"),
    "logical_and": logical("And"), "bitwise_and": logical("And"), "__and__": logical("And"),
    "logical_or": logical("Or"), "bitwise_or": logical("Or"), "__or__": logical("Or"),
    "logical_xor": logical("Xor"), "bitwise_xor": logical("Xor"),
    "sum": reduced("ReduceSum"), "mean": reduced("ReduceMean"), "amax": reduced("ReduceMax"),
    "amin": reduced("ReduceMin"), "prod": reduced("ReduceProd"), "any": whether("ReduceMax"),
    "all": whether("ReduceMin"), "argmax": place_of("ArgMax"), "argmin": place_of("ArgMin"),
    "max": extreme("ReduceMax", "ArgMax"), "min": extreme("ReduceMin", "ArgMin"),
    "cumsum": summed_up, "sort": sorted_along,
    "view": reshaped, "_unsafe_view": reshaped, "reshape": reshaped, "squeeze": reshaped, "permute": permuted,
    "transpose": transposed, "t": turned, "unsqueeze": unsqueezed, "expand": expanded, "repeat": repeated,
    "cat": joined, "stack": stacked, "select": selected, "slice": sliced, "split": split,
    "split_with_sizes": split_in, "unbind": unbound, "index_select": rows_by, "embedding": embedded,
    "gather": gathered, "index": indexed, "scatter_add": added_at, "flip": flipped, "constant_pad_nd": padded,
    "clone": same, "detach": same, "alias": same, "contiguous": same, "lift_fresh_copy": same, "_to_copy": of_type,
    "copy": copied, "zeros_like": filled_like(0), "ones_like": filled_like(1), "empty_like": filled_like(0),
    "full_like": filled_like(None), "fill": filled_like(None),
    "mm": product, "bmm": product, "matmul": product, "mv": product, "dot": product, "addmm": product_and,
    "baddbmm": product_and, "convolution": convolved, "max_pool2d_with_indices": pooled, "avg_pool2d": pooled_evenly,
}  # fmt: skip
"""By the name of an operator of torch."""
