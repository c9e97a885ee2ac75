"""A computation as a list of steps: torch operators on inputs, constants and results of earlier steps."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

RESHAPED = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}
"""Views that another memory layout, such as channels-last, may not allow."""


@dataclass(frozen=True)
class Size:
    """The size k N + c of a dimension, for a batch of N."""

    factor: int
    summand: int


@dataclass(eq=False)
class Value:
    """A tensor: the inputs, a constant, or the result of an operator (the one at position `item`, if several)."""

    shape: tuple[int | Size, ...]
    dtype: torch.dtype
    operator: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    item: int | None = None
    constant: Tensor | None = None

    @property
    def is_input(self) -> bool:
        return self.operator is None and self.constant is None

    @property
    def needed(self) -> list[Value]:
        """The arguments that are values."""
        return list(values_in((self.args, dict(self.kwargs))))


@dataclass(frozen=True)
class Program:
    """A function from inputs (N, ...) to named outputs (N, ...)."""

    inputs: Value
    values: tuple[Value, ...]
    """All values that outputs depend on, in order."""
    outputs: Mapping[str, Value]

    def module(self) -> fx.GraphModule:
        """Return the program as a module, which torch can run and export."""
        graph, root, nodes = fx.Graph(), nn.Module(), dict[int, Any]()
        nodes[id(self.inputs)] = x = graph.placeholder("inputs")
        batch = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
        of_call: dict[Any, fx.Node] = {}

        def argument(value: Any) -> Any:
            if isinstance(value, Value):
                return nodes[id(value)]
            if isinstance(value, Size):
                found = graph.call_function(operator.mul, (batch, value.factor))
                return graph.call_function(operator.add, (found, value.summand))
            if isinstance(value, (list, tuple)):
                return type(value)(argument(each) for each in value)
            return value

        for value in self.values:
            if value.constant is not None:
                root.register_buffer(name := f"c{len(list(root.buffers()))}", value.constant)
                nodes[id(value)] = graph.get_attr(name)
                if value.constant.shape != value.shape:
                    shape = argument(list(value.shape))
                    nodes[id(value)] = graph.call_function(torch.ops.aten.expand.default, (nodes[id(value)], shape))
            elif value.operator is not None:
                key = id(value.args)
                if value.item is None or key not in of_call:
                    kwargs = {name: argument(each) for name, each in value.kwargs.items()}
                    target = RESHAPED.get(value.operator, value.operator)
                    of_call[key] = graph.call_function(target, argument(value.args), kwargs)
                made = of_call[key]
                if value.item is not None:
                    made = graph.call_function(operator.getitem, (made, value.item))
                nodes[id(value)] = made
        graph.output({name: nodes[id(value)] for name, value in self.outputs.items()})
        return fx.GraphModule(root, graph)


def values_in(arguments: Any) -> Iterator[Value]:
    """Yield the values in nested arguments."""
    if isinstance(arguments, Value):
        yield arguments
    elif isinstance(arguments, Mapping):
        yield from values_in(list(arguments.values()))
    elif isinstance(arguments, (list, tuple)):
        for each in arguments:
            yield from values_in(each)


def used(values: list[Value], outputs: Mapping[str, Value]) -> list[Value]:
    """Return the values that outputs depend on, in order."""
    wanted = {id(value) for value in outputs.values()}
    for value in reversed(values):
        if id(value) in wanted:
            wanted |= {id(each) for each in value.needed}
    return [value for value in values if id(value) in wanted]
