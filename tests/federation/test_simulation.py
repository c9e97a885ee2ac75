"""Flower's simulation (Ray): every silo a process of its own, and the bits of the single-machine engine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import assert_same
from test_federation import states, summary

import caveat
from caveat.config import load
from caveat.files import read_payload
from caveat.runs.start import start

pytestmark = pytest.mark.long
METHODS = ("fedavg", "scaffold", "uefl", "fedpn", "fmlu", "trfeddis")
SETS = [
    "rounds=2", "baselines=[]", "data.n_silos=3", "data.samples_per_silo=60", "model.name=mlp", "model.hidden=8",
    "model.width=8", "model.features=8", "training.batch_size=16", "uncertainty.mc_samples=2",
    "engine.keep_checkpoints=1",
]  # fmt: skip
SIMULATION = """
import sys
from pathlib import Path

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from caveat.config import load
from caveat.federation import silo_app
from caveat.federation.server.run import serve
from caveat.runs.progress import Plain

app = ServerApp()

@app.main()
def main(grid, context):
    for method in METHODS:
        serve(load("digits", [*SETS, f"method.name={method}", "engine.name=flower"]), grid, Path(OUT) / method, Plain())

run_simulation(app, silo_app(), 3, backend_config={
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {
        "num_cpus": 2, "num_gpus": 0, "include_dashboard": False, "log_to_driver": False, "logging_level": "error",
        "object_store_memory": 80 * 2**20,
    },
})
"""


QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A folder for Ray, whose sockets have paths of 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    yield folder
    for process in processes_of(folder):
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Whose command line or environment names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def simulated(short: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run of each method, all of one simulation: starting Ray takes longer than all of them."""
    folder = tmp_path_factory.mktemp("simulation")
    text = f"METHODS, SETS, OUT = {METHODS!r}, {SETS!r}, {str(folder)!r}\n{SIMULATION}"
    environment = os.environ | QUIET | {"RAY_TMPDIR": str(short), "FLWR_HOME": str(short / "flower")}
    # A process of its own: Ray leaves open files behind in the one that it is started from.
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_a_simulation_ends_in_the_bits_of_the_embedded_engine(method: str, simulated: Path, tmp_path: Path) -> None:
    here, there = start(load("digits", [*SETS, f"method.name={method}"]), tmp_path / "run"), simulated / method
    assert_same(read_payload(here / "model" / "model.safetensors"), read_payload(there / "model" / "model.safetensors"))
    ours, theirs = (read_payload(max(run.glob("state/server-*.safetensors"))) for run in (here, there))
    assert_same(ours, theirs)
    silos = [path.name for path in sorted((here / "state" / "silos").glob("*"))]
    # A silo of a simulation has a folder for its own books, also where it keeps no state.
    assert silos == sorted({path.parent.name for path in (there / "state" / "silos").glob("*/*.safetensors")})
    for name in silos:
        # The newest state; a slow run also has that of its last checkpoint that was synced to disk.
        ours_of, theirs_of = (max(states(run / "state" / "silos" / name).items()) for run in (here, there))
        assert ours_of[0] == theirs_of[0]
        assert_same(*(read_payload(path) for _, path in (ours_of, theirs_of)))
    assert summary(here) == summary(there)
    for name in silos:
        x = caveat.load(here).silos.named(name).test.x
        assert caveat.load(here).predictor(name)(x).probs.equal(caveat.load(there).predictor(name)(x).probs)
    for file in ("rounds.jsonl", "ledger.jsonl", "splits.json", "gallery.json"):
        assert (here / file).read_bytes() == (there / file).read_bytes()
