"""A program as an ONNX model, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from ..core import ConfigurationError
from .onnx_builder import Graph, Ref
from .onnx_steps import STEPS
from .program import Program, Size, Value

OPSET = 18


def onnx_model(program: Program, metadata: Mapping[str, str]) -> ModelProto:
    """The model that computes a program's outputs from a tensor "inputs" (batch, ...), with texts by name in it."""
    from onnx import checker, helper, numpy_helper

    graph, refs = Graph(), dict[int, Ref]()
    of_call: dict[int, Any] = {}
    for value in program.values:
        if value.is_input:
            refs[id(value)] = Ref("inputs", value.dtype, value.shape)
        elif value.constant is not None:
            refs[id(value)] = _constant(graph, value)
        else:
            refs[id(value)] = Ref(_step(graph, value, refs, of_call), value.dtype, value.shape)
    for name, value in program.outputs.items():
        graph.nodes.append(helper.make_node("Identity", [refs[id(value)].name], [name]))
    outputs = [_info(graph, name, value) for name, value in program.outputs.items()]
    made = helper.make_graph(
        graph.nodes, "caveat", [_info(graph, "inputs", program.inputs)], outputs,
        [numpy_helper.from_array(array, name) for name, array in graph.arrays],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="caveat")
    model.ir_version = 8
    helper.set_model_props(model, dict(metadata))
    checker.check_model(model)
    return model


def _constant(graph: Graph, value: Value) -> Ref:
    constant = value.constant
    if constant is None:
        raise ValueError("no constant")
    name = graph.tensor(constant)
    if tuple(constant.shape) != value.shape:
        name = graph.add("Expand", name, graph.shape(value.shape))
    return Ref(name, value.dtype, value.shape, constant)


def _step(graph: Graph, value: Value, refs: Mapping[int, Ref], of_call: dict[int, Any]) -> str:
    key = id(value.args)
    if value.item is None or key not in of_call:
        step = STEPS[value.operator.overloadpacket.__name__]
        given = _given(value.args, refs), {name: _given(each, refs) for name, each in value.kwargs.items()}
        try:
            of_call[key] = step(graph, Ref("", value.dtype, value.shape), *given[0], **given[1])
        except (NotImplementedError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"this model is none of ONNX: {value.operator}: {error}; try --format torch"
            ) from error
    return str(of_call[key] if value.item is None else of_call[key][value.item])


def _given(value: Any, refs: Mapping[int, Ref]) -> Any:
    if isinstance(value, Value):
        return refs[id(value)]
    return type(value)(_given(each, refs) for each in value) if isinstance(value, (list, tuple)) else value


def _info(graph: Graph, name: str, value: Value) -> Any:
    shape = ["batch" if isinstance(size, Size) else size for size in value.shape]
    return graph.helper.make_tensor_value_info(name, graph.type_of(value.dtype), shape)
