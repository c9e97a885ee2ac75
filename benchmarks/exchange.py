"""Measure the seconds of one exchange of messages between a server and silos on this machine, over Flower.

python benchmarks/exchange.py OUT [--silos N] [--rounds N] [--alone]

Starts a server with TLS and N silos on loopback, with the scripts of a project of `caveat flower init`, and trains a
small network by FedAvg. Each round is one exchange: the server's model to every silo, and an update back. Prints the
seconds between consecutive aggregated replies. With --alone, silos have no resident process, so each message's process
imports everything. OUT is a new folder and keeps the logs. Needs caveat[flower], openssl and ssh-keygen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from caveat.federation.project import write_project

CONFIG = """rounds = {rounds}
[data]
source = "on_site"
target = "ill"
classes = ["no", "yes"]
[model]
name = "mlp"
width = 32
[method]
name = "fedavg"
[training]
local_epochs = 1
batch_size = 16
[evaluation]
every = 1000
[federation]
min_available_silos = {silos}
round_timeout = 300
[engine]
name = "flower"
"""
SILO = """silo = "{name}"
state = "state"
[data]
source = "csv:{name}.csv"
target = "ill"
small_counts = true
[data.label_codes]
0 = "no"
1 = "yes"
"""
ROWS = 300


def table(seed: int) -> str:
    """Rows of five numbers of a silo, and a label that depends on them."""
    drawn = random.Random(seed)
    rows = [[drawn.gauss(0, 1) for _ in range(5)] for _ in range(ROWS)]
    lines = [",".join([*(f"{value:.4f}" for value in row), str(int(sum(row) > 0))]) for row in rows]
    return "\n".join(["a,b,c,d,e,ill", *lines]) + "\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(folder: Path, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A script of the project, in a session of its own that ends with it."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


RESIDENT = 'PATH="$FLWR_HOME/bin:$PATH"'
"""The line of silo.sh without which no message reaches a resident process."""


def prepared(project: Path, silos: int, rounds: int, alone: bool) -> list[Path]:
    """The project at the server, and a copy of it for every silo."""
    write_project(project, CONFIG.format(silos=silos, rounds=rounds), None)
    subprocess.run(["./certificates.sh", "localhost"], cwd=project, check=True, capture_output=True)
    homes = [project.with_name(f"silo{k}") for k in range(silos)]
    for k, home in enumerate(homes):
        shutil.copytree(project, home, ignore=shutil.ignore_patterns("certificates"))
        (home / "certificates").mkdir()
        shutil.copy(project / "certificates" / "ca.crt", home / "certificates")
        (home / f"{home.name}.csv").write_text(table(k))
        (home / "silo.toml").write_text(SILO.format(name=home.name))
        if alone:
            script = (home / "silo.sh").read_text()
            (home / "silo.sh").write_text(script.replace(RESIDENT, ":").replace('attend "$node" &', ":"))
        subprocess.run(["./key.sh", home.name], cwd=home, check=True, capture_output=True)
    return homes


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def times(ledger: Path, run: subprocess.Popen[bytes]) -> list[float]:
    """When an answer to each exchange was first counted."""
    seen, ended = list[float](), False
    while not ended:
        ended = run.poll() is not None
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        rows = [json.loads(line) for line in lines[1:] if line.endswith("}")]
        counted = {(row["t"], row["phase"], row.get("split")) for row in rows if "t" in row}
        seen += [time.monotonic()] * (len(counted) - len(seen))
        time.sleep(0.05)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--silos", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # what was started ends with it
    project, port = given.out.absolute() / "server", free_port()
    homes = prepared(project, given.silos, given.rounds, given.alone)
    with started(project, "server", "./server.sh", "127.0.0.1", str(port)):
        while not listening(port):
            time.sleep(0.2)
        for home in homes:
            key = str(home / "keys" / f"{home.name}.pub")
            subprocess.run(["./admit.sh", key], cwd=project, check=True, capture_output=True)
        with ExitStack() as stack:
            for home in homes:
                silo = ["./silo.sh", "silo.toml", f"keys/{home.name}", f"localhost:{port}"]
                stack.enter_context(started(home, "silo", *silo))
            began = time.monotonic()
            run = stack.enter_context(started(project, "run", "./run.sh", "runs/run"))
            seen = times(project / "runs" / "run" / "ledger.jsonl", run)
            ended = time.monotonic()
    if run.returncode:
        print(f"the run ended with status {run.returncode}; see {project / 'run.log'}", file=sys.stderr)
        return 1
    apart = [b - a for a, b in pairwise(seen)]
    print(f"{given.silos} silos: {statistics.median(apart):.1f} s per exchange (median of {len(apart)})")
    print(
        " ".join(f"{seconds:.1f}" for seconds in apart),
        f"; from start to first round {seen[0] - began:.1f} s,",
        f"whole run {ended - began:.1f} s",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
