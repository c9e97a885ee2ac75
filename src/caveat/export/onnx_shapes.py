"""Operators of torch that move numbers and leave them as they are, in ONNX: see `onnx_steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .program import Size

if TYPE_CHECKING:
    from .onnx_builder import Graph, Ref

LAST = 2**63 - 1


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


def filled_like(value: float | None) -> Callable[..., str]:
    def step(graph: Graph, out: Ref, x: Any, given: float = 0, **kwargs: Any) -> str:
        number = graph.number(given if value is None else value, out.dtype)
        return graph.add("Expand", number, graph.shape(out.shape))

    return step
