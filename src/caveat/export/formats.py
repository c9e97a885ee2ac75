"""Formats of exported models: ONNX, `torch.export` and MLflow, with functions that write and run a file."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import ConfigurationError
from .model_card import sizes
from .onnx_nodes import Graph, Ref
from .onnx_steps import STEPS
from .predictor import RawInputs
from .program import Program, Size, Value

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 18
Arrays = dict[str, NDArray[Any]]
EXAMPLES = 3
"""Number of random example inputs, which are not from any silo's data."""


def onnx_model(program: Program, metadata: Mapping[str, str]) -> ModelProto:
    """Return an ONNX model of a program, from a tensor "inputs" (batch, ...), with metadata."""
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
                f"this model cannot be written as ONNX: {value.operator}: {error}; try --format torch"
            ) from error
    return str(of_call[key] if value.item is None else of_call[key][value.item])


def _given(value: Any, refs: Mapping[int, Ref]) -> Any:
    if isinstance(value, Value):
        return refs[id(value)]
    return type(value)(_given(each, refs) for each in value) if isinstance(value, (list, tuple)) else value


def _info(graph: Graph, name: str, value: Value) -> Any:
    shape = ["batch" if isinstance(size, Size) else size for size in value.shape]
    return graph.helper.make_tensor_value_info(name, graph.type_of(value.dtype), shape)


def check_installed(kind: str) -> None:
    """Raise ConfigurationError if a package for the format is not installed."""
    for package in NEEDED[kind]:
        if find_spec(package) is None:
            extras = "onnx,mlflow" if kind == "mlflow" else kind
            raise ConfigurationError(f"format {kind!r} needs {package}: pip install 'caveat[{extras}]'")


def write_onnx(program: Program, raw: RawInputs, about: Mapping[str, str], path: Path) -> None:
    path.write_bytes(onnx_model(program, about).SerializeToString())


def write_torch(program: Program, raw: RawInputs, about: Mapping[str, str], path: Path) -> None:
    batch = {"inputs": {0: torch.export.Dim("batch", min=1)}}
    with torch.no_grad(), quiet():
        exported = torch.export.export(program.module(), (raw.batch(EXAMPLES),), dynamic_shapes=batch, strict=False)
        program_file = io.BytesIO()  # torch's file errors are long
        torch.export.save(exported, program_file, extra_files={"caveat.json": json.dumps(dict(about))})
    path.write_bytes(program_file.getvalue())


def write_mlflow(program: Program, raw: RawInputs, about: Mapping[str, str], path: Path) -> None:
    """Write an MLflow folder: a model from code around the ONNX file, with signature and example."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        write_onnx(program, raw, about, model)
        _save_mlflow(program, raw, about, path, model)


def _save_mlflow(program: Program, raw: RawInputs, about: Mapping[str, str], path: Path, model: Path) -> None:
    with quiet():  # separate from the block below, because the imports set warning filters
        import mlflow.pyfunc
        import onnxruntime
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

    outputs: list[Any] = [
        TensorSpec(torch.zeros(0, dtype=value.dtype).numpy().dtype, tuple(sizes(value.shape)), name)
        for name, value in program.outputs.items()
    ]
    example: Any = raw.batch(EXAMPLES).numpy()
    given = Schema([TensorSpec(example.dtype, (-1, *raw.shape))])
    if raw.kind == "table":
        example, given = _table(raw, example)
        outputs.append(TensorSpec(np.dtype(str), (-1,), "notes"))
    code = str(files(__package__) / "templates" / "served.py")
    with quiet():
        mlflow.pyfunc.save_model(
            path, python_model=code, artifacts={"model": str(model)}, input_example=example, metadata=dict(about),
            signature=ModelSignature(given, Schema(outputs)),
            pip_requirements=[f"onnxruntime=={onnxruntime.__version__}", f"numpy=={np.__version__}"],
        )  # fmt: skip


def _table(raw: RawInputs, example: NDArray[Any]) -> tuple[Any, Any]:
    import pandas
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    columns: dict[str, Any] = {}
    specs: list[Any] = []
    any_value: Any = AnyType()  # type: ignore[no-untyped-call]
    for i, column in enumerate(raw.encoder.table):
        texts = column.categories
        values = example[:, i].astype(np.float64)
        columns[column.name] = values if texts is None else [texts[int(code)] for code in values]
        specs.append(ColSpec(any_value, column.name))  # for columns of numbers, MLflow would refuse whole numbers
    return pandas.DataFrame(columns), Schema(specs)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log messages of libraries."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


NEEDED = {"onnx": ("onnx", "onnxruntime"), "torch": (), "mlflow": ("onnx", "onnxruntime", "mlflow", "pandas")}
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "mlflow": ".mlflow"}
WRITERS: dict[str, Callable[[Program, RawInputs, Mapping[str, str], Path], None]] = {
    "onnx": write_onnx, "torch": write_torch, "mlflow": write_mlflow,
}  # fmt: skip


def ask_onnx(path: Path, x: NDArray[Any]) -> Arrays:
    """Return the outputs of an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"inputs": x}), strict=True))


def ask_torch(path: Path, x: NDArray[Any]) -> Arrays:
    """Return the outputs of a `torch.export` file."""
    with torch.no_grad(), quiet():
        found = torch.export.load(path).module()(torch.from_numpy(x))
    return {name: each.numpy() for name, each in found.items()}


def ask_mlflow(path: Path, x: NDArray[Any]) -> Arrays:
    """Return the outputs of an MLflow folder, from its ONNX file."""
    return ask_onnx(next((path / "artifacts").glob("*.onnx")), x)


ASKED: dict[str, Callable[[Path, NDArray[Any]], Arrays]] = {
    "onnx": ask_onnx, "torch": ask_torch, "mlflow": ask_mlflow,
}  # fmt: skip
