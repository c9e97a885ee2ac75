"""What cannot be written to standard output or error: a run goes on, and results that are lost are said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, sets

import caveat as caveat_package
from caveat.cli.console import Outlet

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("nowhere")]
RUN = [*sets(*TINY, "rounds=3"), "--out", "out"]


def started(*arguments: str, **streams: object) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(caveat_package.__file__).parent.parent)}
    return subprocess.Popen([sys.executable, "-m", "caveat", *arguments], env=environment, **streams)  # type: ignore[call-overload]


def whole(folder: Path) -> bool:
    return (folder / "out" / "summary.json").exists() and (folder / "out" / "report.html").exists()


def test_a_reader_of_everything_that_leaves_does_not_end_the_run(nowhere: Path) -> None:
    """As in `caveat run 2>&1 | head -1`."""
    run = started("run", *RUN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.stdout is not None
    assert b"up to 3 rounds" in run.stdout.readline()
    run.stdout.close()
    assert run.wait(120) == 0
    assert whole(nowhere)


def test_a_reader_of_the_results_that_leaves_is_not_even_mentioned(nowhere: Path) -> None:
    run = started("run", *RUN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    told = run.stderr.read().decode()
    run.stderr.close()
    assert run.wait(120) == 0, told
    rounds = [line.split()[2] for line in told.splitlines()[1:] if "Predictions are less" not in line]
    assert rounds == ["train"] * 3 + ["temperature", "familiarity"]
    assert whole(nowhere)


def test_a_full_disk_for_messages_does_not_end_the_run(nowhere: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert started("run", *RUN, stdout=subprocess.DEVNULL, stderr=full).wait(120) == 0
    assert whole(nowhere)


def test_closed_streams_do_not_end_the_run(nowhere: Path) -> None:
    """Nor does a file of the run get what was meant for one."""
    script = f"exec '{sys.executable}' -m caveat \"$@\" >&- 2>&-"
    environment = os.environ | {"PYTHONPATH": str(Path(caveat_package.__file__).parent.parent)}
    done = subprocess.run(["bash", "-c", script, "bash", "run", *RUN], env=environment, check=False, timeout=120)
    assert done.returncode == 0
    assert whole(nowhere)
    assert not any(b"up to 3 rounds" in path.read_bytes() for path in (nowhere / "out").rglob("*") if path.is_file())


def test_predictions_that_no_disk_takes_are_a_failure(finished: tuple[Path, object], nowhere: Path) -> None:
    np.savez(nowhere / "in.npz", x=np.zeros((5, 8, 8), np.uint8))
    with Path("/dev/full").open("w") as full:
        predict = started(
            "predict", str(finished[0]), "in.npz", "--silo", "silo-0", stdout=full, stderr=subprocess.PIPE
        )
        _, told = predict.communicate(timeout=120)
    assert predict.returncode == 4
    assert told.decode().splitlines()[-1] == "error: cannot write to standard output: No space left on device"


def test_an_outlet_forgets_what_nobody_reads_and_remembers_what_somebody_wanted() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        gone = Outlet(pipe)
        gone.write("lost\n")
        gone.flush()
        gone.write("lost as well\n")
        gone.flush()
    assert gone.lost is not None
    assert gone.failed is None
    with Path("/dev/full").open("w") as disk:
        full = Outlet(disk)
        full.write("lost\n")
        full.flush()
    assert full.failed is not None
