"""Runs with secure aggregation on one machine: the same results up to rounding, and no numbers of single silos."""

import json
from pathlib import Path

import pytest
import torch
from bits_rows import BASE, PIXELS
from commands import caveat, one_error, sets
from safetensors.torch import load_file

from caveat.files import read
from caveat.files.schema import Summary

OFF = f"{PIXELS} federation.robust=off"
GUARDED = "uncertainty.policy=guaranteed uncertainty.set_coverage=0.8 uncertainty.source=laplace"


def run(folder: Path, name: str, settings: str) -> Path:
    (folder / "base.toml").write_text(BASE)
    result = caveat("run", folder / "base.toml", "--out", folder / name, *sets(*f"{OFF} {settings}".split()))
    assert result.exit_code == 0, result.stderr
    return folder / name


@pytest.mark.parametrize("settings", [GUARDED, "method.name=fedper model.name=cnn"], ids=["mlp", "cnn"])
def test_secure_sums_give_the_plain_results_up_to_rounding(tmp_path: Path, settings: str) -> None:
    plain, secure = run(tmp_path, "plain", settings), run(tmp_path, "secure", f"{settings} federation.secure=true")
    one, other = (load_file(each / "model" / "model.safetensors") for each in (plain, secure))
    assert one.keys() == other.keys()
    # Counts in the bins of other groups may differ by an input at an edge.
    for name, tensor in ((name, each) for name, each in one.items() if name.startswith("model/")):
        assert torch.allclose(tensor.double(), other[name].double(), atol=1e-4, equal_nan=True), name
    before, after = (read(each / "summary.json", Summary) for each in (plain, secure))
    assert after.pooled.accuracy == pytest.approx(before.pooled.accuracy, abs=0.05)
    assert after.guarantee == before.guarantee or "laplace" in settings


def test_no_file_of_the_run_has_numbers_of_a_single_silo(tmp_path: Path) -> None:
    folder = run(tmp_path, "secure", f"{GUARDED} federation.secure=true")
    summary = read(folder / "summary.json", Summary)
    assert [silo.name for silo in summary.silos] == ["all silos"]
    assert summary.worst is None
    assert summary.secure is not None
    assert len(summary.secure.silos) == 3
    assert {"train", "temperature", "survey", "count", "conform", "curvature"} <= set(summary.secure.sums)
    assert summary.secure.single == []
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert {row["silo"] for row in rows} == {"all silos"}
    assert summary.silos[0].n_test == 60
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert all(line["summed"] for line in lines if "tensors" in line)
    assert "only as a sum" in (folder / "report.html").read_text()


def test_secure_runs_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    folders = [run(tmp_path, f"w{n}", f"federation.secure=true engine.workers={n}") for n in (1, 2)]
    one, other = (load_file(each / "model" / "model.safetensors") for each in folders)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("federation.robust=bound", "cannot be combined: rules against malicious silos need single updates"),
        ("federation.robust=median", "hides"),
        ("data.n_silos=2", "needs at least 3 silos in every round"),
        (
            "federation.participation=0.5 federation.min_silos=2",
            "needs at least 3 silos in every round",
        ),
        (
            "evaluation.n_silos=2",
            "two thirds, and at least 3), but evaluation.n_silos = 2",
        ),
    ],
)
def test_what_needs_single_silos_is_refused(tmp_path: Path, settings: str, why: str) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    asked = sets(*f"{OFF} federation.secure=true {settings}".split())
    result = caveat("run", tmp_path / "base.toml", "--out", tmp_path / "run", *asked)
    assert why in " ".join(one_error(result, 2).split())


def test_rounds_that_need_single_updates_are_named(tmp_path: Path) -> None:
    folder = run(tmp_path, "secure", "method.name=feddisco federation.secure=true")
    secure = read(folder / "summary.json", Summary).secure
    assert secure is not None
    assert secure.single == ["train"]
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert not next(line.get("summed", False) for line in lines if "tensors" in line)
