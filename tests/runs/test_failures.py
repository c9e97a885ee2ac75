"""What a run fails of is kept in its folder until it has gone on, and names what would fail again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import TINY, caveat, sets
from federations import silos

import caveat as library
from caveat.core import Payload, RunError, SiloContext, State, Update
from caveat.core.errors import Diverged
from caveat.data.silo_collection import Silos
from caveat.files import read, read_run
from caveat.files.schema import Failure
from caveat.methods import FedAvg
from caveat.training.fit import Training

FAST = Training(batch_size=16, lr=0.01)


@dataclass(frozen=True)
class Unplugged(FedAvg):
    """Fails in its second round at one silo, while a file is there."""

    switch: str = ""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        if context.id == "silo-1" and (file := Path(self.switch)).exists():
            if file.read_text():
                raise OSError("the cable is out")
            file.write_text("has been here")
        return super().train(down, state, context)


@pytest.fixture
def data() -> Silos:
    return Silos(tuple(silos().values()), ("a", "b", "c"))


def failure(folder: Path) -> Failure:
    return read(folder / "failure.json", Failure)


@pytest.mark.parametrize("workers", [1, 2])
def test_training_that_diverges_is_kept_as_such(tmp_path: Path, data: Silos, workers: int) -> None:
    method = FedAvg(rounds=2, training=Training(batch_size=16, optimizer="sgd", lr=1e30))
    with pytest.raises(Diverged) as caught:
        library.run(data, method, out=tmp_path / "run", workers=workers)
    found = failure(tmp_path / "run")
    assert found.diverged
    assert (found.round, found.silo) == (1, caught.value.silo)
    assert found.silo.startswith("silo-")
    assert found.error == str(caught.value)
    assert "the same settings would diverge again" in " ".join(caught.value.__notes__)
    assert read_run(tmp_path / "run").failure == found


def test_what_is_mended_leaves_no_failure_and_the_same_bits(tmp_path: Path, data: Silos) -> None:
    switch = tmp_path / "switch"
    switch.touch()
    method = Unplugged(rounds=3, training=FAST, switch=str(switch))
    with pytest.raises(RunError, match="the cable is out"):
        library.run(data, method, out=tmp_path / "run")
    found = failure(tmp_path / "run")
    assert (found.diverged, found.lost, found.round, found.silo) == (False, False, 2, "silo-1")
    switch.unlink()
    library.run(data, method, out=tmp_path / "run")
    library.run(data, method, out=tmp_path / "other")
    assert not (tmp_path / "run" / "failure.json").exists()
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "other")]
    assert weights[0] == weights[1]
    assert "failure.json" not in (tmp_path / "run" / "summary.json").read_text()


def test_the_command_line_writes_the_page_and_offers_no_resuming(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = caveat("run", *sets(*TINY, "training.lr=1e9", "training.optimizer='sgd'"), "--out", out, "--quiet")
    error = one_error_line(result.stderr)
    assert result.exit_code == 4
    assert "caveat resume" not in error
    assert "resuming would fail again: start a new run with a lower training.lr" in error
    assert "training diverged" in (out / "report.html").read_text()


def one_error_line(stderr: str) -> str:
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return line
