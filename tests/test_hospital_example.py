"""The example of hospitals: its configurations can be read, and its benchmark tells what it says, on made tables."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from commands import caveat

from caveat.config import load

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "hospitals"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """By its path: the tests' helpers have a module of its name."""
    spec = importlib.util.spec_from_file_location("hospitals_benchmark", ROOT / "benchmarks" / "hospitals.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", ["fedpn", "uefl"])
def test_configurations_are_read_and_train_in_few_rounds(method: str) -> None:
    """Every message between machines takes seconds."""
    config = load(str(EXAMPLE / f"{method}.toml"))
    assert (config.method.name, config.engine.name) == (method, "flower")
    assert sum(step.trains for step in config.build_method().schedule()) <= 15
    assert {column.name for column in config.data.dictionary} >= {"age", "sex", "chol", "thal"}


def test_both_have_one_model() -> None:
    """Or the rows of the table would differ in more than their method."""
    assert load(str(EXAMPLE / "fedpn.toml")).model == load(str(EXAMPLE / "uefl.toml")).model


def write_tables(folder: Path, hospitals: tuple[str, ...]) -> None:
    """Patients of four hospitals, of whom the sick are older."""
    rng = np.random.default_rng(0)
    header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,disease"
    for name, ill in zip(hospitals, (0.4, 0.4, 0.8, 0.7), strict=True):
        lines = [header]
        for k in range(100):
            y = int(k < 100 * ill)
            age = 40 + 20 * y + int(rng.integers(-8, 8))
            sex, pain, sugar, ecg, angina = (int(rng.integers(n)) for n in (2, 4, 2, 3, 2))
            row = [age, sex, pain + 1, 120 + k % 30, 200 + k, sugar, ecg, 150 - k % 40, angina, k % 4, k % 3 + 1, k % 4]
            lines.append(",".join(map(str, [*row, (3, 6, 7)[k % 3], y])))
        (folder / f"uci_heart_{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("method", ["fedpn", "uefl"])
def test_the_silo_file_of_the_example_may_join(method: str, tmp_path: Path) -> None:
    """As it stands in the repository, with and without the federation's configuration."""
    pytest.importorskip("flwr")
    for name in ("silo.toml", "dictionary.toml", f"{method}.toml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    write_tables(tmp_path, ("cleveland", "hungarian", "switzerland", "va"))
    for more in ((), ("--config", tmp_path / f"{method}.toml")):
        found = caveat("data", tmp_path / "silo.toml", *more)
        assert found.exit_code == 0, found.stderr
        assert "all checks of joining a federation passed" in found.stdout


def test_the_dictionary_keeps_its_comments_on_the_way_to_the_hospitals(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    assert caveat("flower", "init", tmp_path / "project", EXAMPLE / "fedpn.toml").exit_code == 0
    assert (tmp_path / "project" / "dictionary.toml").read_text() == (EXAMPLE / "dictionary.toml").read_text()
    assert "# 0 female, 1 male" in (tmp_path / "project" / "dictionary.toml").read_text()


@pytest.mark.filterwarnings("ignore:column")
def test_the_table_has_figures_of_each_hospital_and_differences(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path, benchmark.HOSPITALS)
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path))
    out = tmp_path / "rows.jsonl"
    rows = f"majority;{benchmark.LOGISTIC}"
    monkeypatch.setattr(sys, "argv", ["", "--out", str(out), "--small", "--seeds", "1", "--rows", rows])
    benchmark.main()
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(written) == 2
    majority = next(each for each in written if each["row"] == "majority")["figures"]
    assert {name: round(own["accuracy"], 2) for name, own in majority.items()} == {
        "cleveland": 0.5, "hungarian": 0.65, "switzerland": 0.75, "va": 0.65,
    }  # fmt: skip
    assert [(own["sensitivity"], own["specificity"]) for own in majority.values()] == [(0, 1), (0, 1), (1, 0), (1, 0)]
    shown = capsys.readouterr().out.splitlines()
    assert next(line for line in shown if line.startswith("| majority")).startswith("| majority | 63.7 [")
    benchmark.main()  # trains nothing that is there
    assert len(out.read_text().splitlines()) == 2


def test_the_logs_have_the_texts_that_the_deployment_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    machines, malicious = importlib.import_module("machines"), importlib.import_module("malicious")
    files = [path for ending in ("*.py", "*.sh") for path in (ROOT / "src" / "caveat").rglob(ending)]
    texts = "\n".join(path.read_text() for path in files)
    assert [text for text in machines.EXPECTED.values() if text not in texts] == []
    assert (malicious.FOLDER / "sitecustomize.py").is_file()
