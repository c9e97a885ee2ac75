"""Export a finished run to a file that predicts and abstains like one of its silos.

The formats are ONNX, `torch.export` and MLflow; each has functions that write and run its files.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
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

from ..core import ConfigurationError, RunError, SiloId
from ..core.errors import one_of
from ..core.prediction import P_VALUES
from ..core.settings import path_of
from ..engines.silos_on_device import one_thread
from ..runs.answering import AnsweringRun, AtSilo
from ..runs.finished_run import Run
from .exported_function import RawInputs, answering, asked_at, outputs, predicted
from .exported_metadata import metadata, sizes
from .exported_model_card import card
from .onnx_nodes import Graph, Ref
from .onnx_operators import STEPS
from .recorded_program import Program, Size, Value
from .recording import NotRecordable, program_of

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 18
Arrays = dict[str, NDArray[Any]]
EXAMPLES = 3
"""Number of random example inputs, which are not from any silo's data."""


def onnx_model(program: Program, metadata: Mapping[str, str]) -> ModelProto:
    """Return an ONNX model of a program, with metadata; its input is a tensor "inputs" (batch, ...)."""
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
    code = str(files(__package__) / "templates" / "mlflow_model.py")
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
    return ask_onnx_with(onnx_session(path), x)


def onnx_session(path: Path) -> Any:
    """Open an ONNX file with one thread. Raises ConfigurationError without onnxruntime, or for an unreadable file."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigurationError(f"{path} needs onnxruntime: pip install 'caveat[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        raise ConfigurationError(f"{path}: not a readable ONNX file ({type(error).__name__})") from error


def ask_onnx_with(session: Any, x: NDArray[Any]) -> Arrays:
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


PROBES = 64
"""Number of random inputs with which a file is checked."""
CLOSE = 1e-4
"""Tolerance of probabilities."""
TIED = 0.05
"""Maximum share of these inputs whose label, quantity, decision or p-value may differ, because it is close to a tie."""
TIES = ("label", "decision", "reason", *P_VALUES)
"""The outputs that may differ only close to a tie."""


def export_model(
    run: Run, silo: SiloId, format: str = "onnx", out: str | Path | None = None, training_features: bool = False
) -> Path:
    """Export a silo's model of a finished run to a file that predicts and abstains without caveat; return its path.

    `format` is "onnx", "torch" (a program of `torch.export`) or "mlflow" (a folder). `out` is by default named after
    the run and the silo, in the current folder. A model card is written next to it, with suffix ".md". The file is
    checked against the run on random inputs. `training_features` adds the features of training inputs that the alarm
    `novel` needs: without them the file has no nearness, and its typicality combines only the other two p-values.

    Raises ConfigurationError for an unknown format or silo, for a path that exists or is not writable, for a missing
    package, and for a model that cannot be recorded as operators; RunError if the file disagrees with the run.
    """
    if format not in WRITERS:
        raise ConfigurationError(f"format = {format!r}: no such format{one_of(format, list(WRITERS))}")
    if silo not in run.preparation.names:
        raise ConfigurationError(f"silo = {silo!r}: no such silo{one_of(silo, run.preparation.names)}")
    path = _place(run, silo, format, out)
    check_installed(format)
    at = asked_at(run.experiment, silo, training_features)
    program = _program(run.experiment, silo, at)
    raw, part = RawInputs(run.preparation, silo), path.with_name(f".{path.name}.part{SUFFIXES[format]}")
    try:
        WRITERS[format](program, raw, metadata(run.experiment, silo, program), part)
        _check(run.experiment, at, raw, lambda x: ASKED[format](part, x))
        card_of(path).write_text(card(run, silo, format, path.name, program), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigurationError(f"out = {str(path)!r}: {error.strerror}") from error
    finally:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    return path


def card_of(path: Path) -> Path:
    """Return the path of an exported model's card."""
    return path.with_suffix(".md")


def _place(run: Run, silo: SiloId, format: str, out: str | Path | None) -> Path:
    """Return the output path. Raises ConfigurationError if it exists or is not writable."""
    path = path_of(out, "out") if out else Path(f"{run.folder.resolve().name}-{silo}{SUFFIXES[format]}")
    if path.suffix == ".md":
        raise ConfigurationError(f"out = {str(path)!r}: the model card has the suffix .md; choose another suffix")
    for each in (path, card_of(path)):
        if os.path.lexists(each):
            raise ConfigurationError(f"out = {str(path)!r}: {each} exists; choose another path")
    if not path.parent.is_dir():
        raise ConfigurationError(f"out = {str(path)!r}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError(f"out = {str(path)!r}: the folder {path.parent} cannot be written to")
    return path


def _program(run: AnsweringRun, silo: SiloId, at: AtSilo) -> Program:
    try:
        with one_thread():
            return program_of(answering(run, silo, at), RawInputs(run.preparation, silo).batch)
    except (NotRecordable, NotImplementedError) as error:
        raise NotRecordable(
            f"this model cannot be exported: {error}; built-in models can be exported; custom models with dropout "
            "inside a layer need uncertainty.source = 'laplace' or 'ensemble'"
        ) from error


def _check(run: AnsweringRun, at: AtSilo, raw: RawInputs, ask: Callable[[NDArray[Any]], Arrays]) -> None:
    x = raw.batch(PROBES)
    with torch.no_grad(), one_thread():
        expected = outputs(predicted(run, at, raw, x))
    found, target = ask(x.numpy()), raw.preparation.target
    for name, each in expected.items():
        if _differ(found[name], each.numpy(), name, () if target is None else target.names):
            raise RunError(f"the exported model disagrees with the run on {name!r}; no file was written")


def _differ(found: NDArray[Any], theirs: NDArray[Any], name: str, figures: tuple[str, ...]) -> bool:
    """Return whether outputs differ more than by rounding; `figures` are the names of a quantity's outputs."""
    if found.shape != theirs.shape:
        return True
    if name == "probs":
        return not np.allclose(found, theirs, rtol=0, atol=CLOSE, equal_nan=True)
    if name in figures:
        size = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
        return float(np.mean(~np.isclose(found, theirs, rtol=0, atol=CLOSE * size, equal_nan=True))) > TIED
    return name in TIES and float((found != theirs).mean()) > TIED
