"""`caveat export`: a file and a card, or one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import caveat, one_error
from typer.testing import Result

pytest.importorskip("onnxruntime")


def test_a_run_is_exported_with_its_card(finished: tuple[Path, Result], nowhere: Path) -> None:
    result = caveat("export", finished[0], "--silo", "silo-1")
    assert (result.exit_code, result.stdout) == (0, "model: tiny-silo-1.onnx\ncard:  tiny-silo-1.md\n"), result.stderr
    assert {path.name for path in nowhere.iterdir()} == {"tiny-silo-1.onnx", "tiny-silo-1.md"}
    assert "exists; choose another path" in one_error(caveat("export", finished[0], "--silo", "silo-1"), 2)


@pytest.mark.parametrize(("arguments", "told"), [
    (["--silo", "silo-7"], "no such silo; did you mean silo-"),
    (["--silo", "silo-0", "--format", "pickle"], "format = 'pickle': no such format (available: onnx, torch, mlflow)"),
    (["--silo", "silo-0", "--out", "no/model.onnx"], "the folder no does not exist"),
])  # fmt: skip
def test_mistakes_are_one_line(finished: tuple[Path, Result], nowhere: Path, arguments: list[str], told: str) -> None:
    assert told in one_error(caveat("export", finished[0], *arguments), 2)
    assert not any(nowhere.iterdir())


def test_a_federation_s_folder_at_a_silo_names_the_methods_in_it(finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "5e08" / "fedavg").mkdir(parents=True)
    (nowhere / "5e08" / "config.toml").write_text((finished[0] / "config.toml").read_text())
    (nowhere / "5e08" / "fedavg" / "silo.json").write_text("{}")
    told = one_error(caveat("export", "5e08", "--silo", "silo-0"), 2)
    assert "5e08 is a silo's folder of a federation; expected the folder of a method in it: fedavg" in told


def test_what_is_not_finished_is_not_exported(finished: tuple[Path, Result], nowhere: Path) -> None:
    (nowhere / "run").mkdir()
    (nowhere / "run" / "run.json").write_text((finished[0] / "run.json").read_text())
    assert "is not finished" in one_error(caveat("export", "run", "--silo", "silo-0"), 2)
