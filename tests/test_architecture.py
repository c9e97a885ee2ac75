"""Imports go down the layers, without a circle: what methods, engines and pages must never know."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import caveat
from caveat.methods import METHODS

SOURCE = Path(caveat.__file__).parent
LAYERS = (
    {"_lazy", "_version", "recipes"},
    {"uncertainty"},
    {"core"},
    {"nn", "training", "metrics", "data", "files", "secure"},
    {"methods", "wrappers", "html"},
    {"engines", "config", "terminal"},
    {"runs"},
    {"analysis", "export", "federation", "testing", "trackers"},
    {"api"},
    {"estimator", "bench", "serving"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Every module or folder of the package. Each imports only from those above it here, and none from its neighbours."""
NEEDED = {
    "methods": {"_lazy", "uncertainty", "core", "nn", "training"},
    "wrappers": {"uncertainty", "core", "nn", "training", "metrics"},
    "html": {"_version", "uncertainty", "core", "files"},
    "terminal": {"core", "files", "html"},
    "secure": {"core"},
    "engines": {"core", "training", "files", "secure"},
}
"""What is stricter than the layers: methods know no data and no files, pages and engines know no model."""
WITHIN = {
    "html": (
        {"svg", "templates", "commands", "predicted_inputs"},
        {"audit_data_fractions", "diagrams", "p_value_charts", "predicted_tables"},
        {"run", "comparison", "audit", "watch", "predictions"},
    ),
    "engines": (
        {
            "allocator",
            "silos_on_device",
            "update_checks",
            "norm_bounding",
            "flower_messages",
            "flower_grid",
            "secure_sums",
        },
        {"measurement_checks"},
        {"executor", "rounds", "flower_secure"},
        {"batched_executor"},
        {"vectorization", "sums_on_arrival"},
        {"worker_process"},
        {"single_machine", "flower"},
    ),
    "analysis": ({"statistics"}, {"compare", "audit"}, {"reproduced_tables", "ood"}),
}
"""The layers within a folder."""


def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        if "templates" not in parts[:-1]:  # what is written into a project is no part of the package
            found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = file
    return found


MODULES = modules()


def imported(name: str) -> set[str]:
    """The modules that a module imports, wherever in it, those for type checkers included."""
    path = MODULES[name].relative_to(SOURCE).parent.parts
    names = set[str]()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom):
            base = path[: len(path) - node.level + 1] if node.level else None
            module = (node.module or "").split(".") if node.module else []
            if base is None:
                if not module or module[0] != "caveat":
                    continue
                base, module = (), module[1:]
            whole = ".".join((*base, *module))
            inner = {f"{whole}.{alias.name}".lstrip(".") for alias in node.names} & MODULES.keys()
            names |= inner or {whole or "__init__"}
        elif isinstance(node, ast.Import):
            names |= {a.name.removeprefix("caveat.") for a in node.names if a.name.startswith("caveat.")}
    return names


IMPORTS = {name: imported(name) for name in MODULES}


def part(name: str) -> str:
    return name.split(".")[0]


def layer(name: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if part(name) in names)
    return found


def forbidden(name: str) -> set[str]:
    """What a module imports of its own layer or of one below it in the list, or beside what its folder needs."""
    others = {other for other in IMPORTS[name] if part(other) != part(name)}
    allowed = NEEDED.get(part(name), {part(other) for other in others})
    return {other for other in others if layer(other) >= layer(name) or part(other) not in allowed}


def test_imports_go_down() -> None:
    assert {name: found for name in MODULES if (found := forbidden(name))} == {}


@pytest.mark.parametrize("folder", WITHIN)
def test_imports_go_down_within_a_folder(folder: str) -> None:
    order = {name: i for i, names in enumerate(WITHIN[folder]) for name in names}
    for name in MODULES:
        if part(name) == folder and name != folder:
            own = name.split(".")[1]
            inner = {other.split(".")[1] for other in IMPORTS[name] if other.startswith(f"{folder}.")} - {own}
            assert {other for other in inner if order[other] >= order[own]} == set(), name


def test_checks_raise_also_where_python_leaves_out_asserts() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in MODULES.values()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: others - {"__init__"} for name, others in IMPORTS.items() if name != "__init__"}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_module_has_one_layer() -> None:
    named = [name for names in LAYERS for name in names]
    assert sorted(named) == sorted({part(name) for name in MODULES})


def test_the_root_holds_what_a_user_imports_or_starts() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 7


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_reader_of_imports_sees_them() -> None:
    assert {"core", "engines.silos_on_device", "data"} <= IMPORTS["runs.answering"]
    assert {"core", "training.fit"} <= IMPORTS["methods.fedavg"]
    assert "core.errors" in IMPORTS["core.method"]


@pytest.mark.parametrize("folder", ["core", "training", "engines", "files", "metrics", "runs", "html", "analysis"])
def test_only_the_table_of_methods_names_one(folder: str) -> None:
    for file in (SOURCE / folder).rglob("*.py"):
        strings = {n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)}
        assert not strings & (set(METHODS) - {"local"}), file.name


@pytest.mark.parametrize("word", ["import pickle", "allow_pickle=True", "joblib", "torch.load(", "torch.save"])
def test_no_pickle(word: str) -> None:
    """Torch's own files hold pickles, of which nothing but tensors is read where a user names one as weights."""
    tensors_alone = 'torch.load(path, map_location="cpu", weights_only=True)'
    for file in SOURCE.rglob("*.py"):
        assert word not in file.read_text().replace(tensors_alone, ""), file.name


def test_every_planted_fault_has_its_place_in_the_sources() -> None:
    path = Path(__file__).with_name("planted_faults.py")
    spec = spec_from_file_location("planted_faults", path)
    assert spec is not None
    assert spec.loader is not None
    faults = module_from_spec(spec)
    sys.modules[spec.name] = faults  # dataclasses look their module up
    spec.loader.exec_module(faults)
    sources = "\n".join(each.read_text() for each in SOURCE.rglob("*.py"))
    assert [fault.name for fault in faults.FAULTS if sources.count(fault.old) != 1] == []


def test_runs_need_no_extra() -> None:
    """`make package` runs the README without extras; packages of extras are imported where they are needed."""
    absent = ["cryptography", "dp_accounting", "fastapi", "flwr", "mlflow", "onnx", "onnxruntime", "pandas", "pyarrow"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
import caveat, caveat.runs.start, caveat.runs.resume, caveat.cli.main, caveat.cli.running, caveat.cli.finished
for name in caveat.__all__:
    getattr(caveat, name)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-500:]
