"""Cases of federations on Flower: three hospitals and their server in one process, each with a folder of its own.

What is damaged is the server's folder of the run, or what one of the silos keeps. A federation may go on without a
silo that has lost its state, if it says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors import numpy as safetensors

from . import actions
from .bits import bits
from .children import Ended, in_child
from .material import POINTS, HarnessError, Undisturbed, scratch, task
from .outcomes import differences
from .points import Points, Snapshots
from .subjects import SUBJECTS
from .warm import warm

METHODS = ("fedavg", "scaffold", "fedpn", "fml")
PREFIX = "flower-"
SILO = "hill"
"""The silo whose folder is damaged, and which predicts."""
SHORT, LONG = 2.0, 60.0
"""Seconds that a server waits for silos: for those that may be refused, and for those that must come."""
ROUNDS = 3
AFTER = ("predict", "load", "report", "serve")
"""What is done with a federation that is over."""
UNLIKE = {"file", "source", "noticed", "sha256"}
"""What a silo says of its data that times of files or its secret are in."""


@dataclass(frozen=True, kw_only=True)
class Federated(Undisturbed):
    """A federation's."""

    method: str


def serve(method: str, folder: Path, nth: int = 1, points: Points | None = None, start_timeout: float = LONG) -> None:
    """Carry out a federation, or what is left of it; `nth` keeps names apart that are drawn by chance."""
    import hospitals

    from caveat.federation.server import membership

    membership.PAUSE = 0.001
    drawn = iter(range(1000))
    secrets.token_hex = lambda size=32: f"{nth}{next(drawn):03d}".rjust(2 * size, "a")
    tables = folder.parent / "tables"
    shutil.rmtree(tables, ignore_errors=True)
    federation = hospitals.Federation(tables, method, ROUNDS, start_timeout=start_timeout)
    # Tables lie elsewhere than what is damaged, and are the same every time.
    for name, home in federation.homes.items():
        text = (home / "silo.toml").read_text()
        (home / "silo.toml").write_text(text.replace('"state"', f'"{folder / "silos" / name}"'))
    federation.run = folder / "run"
    if points is not None:
        points.install()
    with actions.python_errors(OSError):
        federation.serve()


def predict(folder: Path) -> None:
    table = folder.parent / "tables" / "silos" / SILO / f"{SILO}.csv"
    actions.command("predict", kept(folder, SILO), table, "--silo", SILO)


def load(folder: Path) -> None:
    actions.load(SUBJECTS["fedavg"], kept(folder, SILO))


def report(folder: Path) -> None:
    actions.command("report", folder / "run")


def kept(folder: Path, silo: str) -> Path:
    """What a silo keeps of the federation."""
    return next((path.parent for path in sorted((folder / "silos" / silo).glob("*/*/silo.json"))), folder / "none")


def all_bits(folder: Path) -> dict[str, str]:
    """What the server and the silos have come to."""
    name = federation_name(folder)
    found = {f"server/{file}": value for file, value in bits(folder / "run").items()}
    for silo in sorted((folder / "silos").glob("*")):
        of_silo = bits(silo / name) if name else {}
        # What is sent again after an interruption is there again, for it has left the silo again.
        of_silo |= {file: _lines(silo / name / file) for file in of_silo if file.endswith("ledger.jsonl")}
        of_silo |= {file: _of_data(silo / name / file) for file in of_silo if file.startswith("data-")}
        found |= {f"{silo.name}/{file}": value for file, value in of_silo.items()}
    return found


def _lines(path: Path) -> str:
    """The different lines of a file."""
    return "".join(sorted(set(path.read_text(errors="replace").splitlines(keepends=True))))


def _of_data(path: Path) -> str:
    """What a silo stores of its data, but for times of files and for hashes that are keyed by its secret."""
    try:
        if path.suffix == ".json":
            said = json.loads(path.read_text())
            return json.dumps({name: said[name] for name in sorted(said.keys() - UNLIKE)})
        tensors = {name: tensor for name, tensor in safetensors.load(path.read_bytes()).items() if "rows" not in name}
        return hashlib.sha256(safetensors.save(tensors)).hexdigest()
    except (OSError, ValueError, AttributeError, SafetensorError):
        return "damaged"


def federation_name(folder: Path) -> str:
    """The federation's name, which is the folder that silos have of it."""
    try:
        return str(json.loads((folder / "run" / "federation.json").read_text())["federation"])
    except (OSError, ValueError, KeyError):
        return ""


# What cases begin with


def fresh(source: Path | None = None) -> Path:
    """An empty place for a case, or with a copy of a federation's folders."""
    place = task()
    shutil.rmtree(place, ignore_errors=True)
    (place / "outside").mkdir(parents=True)
    (place / "outside" / "own.txt").write_text("the user's own\n")
    if source is None:
        (place / "federation").mkdir()
    else:
        shutil.copytree(source, place / "federation", symlinks=True)
        shutil.copytree(source.parent / "tables", place / "tables")
    return place / "federation"


@cache
def federated(method: str) -> Federated:
    """Carry out a federation twice, to see that it is repeatable, and keep copies."""
    warm()
    import caveat.federation.server.run  # noqa: F401

    store = scratch(os.getpid()) / "store" / f"{PREFIX}{method}"
    shutil.rmtree(store, ignore_errors=True)
    folder = fresh()
    counted = Snapshots(str(folder), set(), lambda number: None)
    _well(method, partial(serve, method, folder, 1, counted))
    plain, count = all_bits(folder), counted.count
    folder = fresh()
    numbers = {1 + count * i // POINTS for i in range(1, POINTS)} | {count - 1}
    points = Snapshots(str(folder), numbers, partial(_keep, folder, store))
    ran = _well(method, partial(serve, method, folder, 1, points))
    if told := differences(plain, all_bits(folder)):
        raise HarnessError(f"{PREFIX}{method}: two undisturbed runs differ: {told}")
    shutil.copytree(folder, store / "finished")
    shutil.copytree(folder.parent / "tables", store / "tables")
    earlier = tuple(sorted((store / "earlier").iterdir()))
    shutil.copytree(folder.parent / "tables", store / "earlier" / "tables")
    return Federated(method=method, finished=store / "finished", earlier=earlier, operations=count, bits=plain, ran=ran)


@cache
def undamaged(method: str, action: str) -> tuple[Ended, dict[str, str]]:
    """How an action ends after an undisturbed federation, and what it answers."""
    folder = fresh(federated(method).finished)
    ended = _well(method, partial(act, action, method, folder))
    return ended, answer(action, ended, folder)


def _well(method: str, call: partial[None]) -> Ended:
    ended = in_child(call)
    if ended.status:
        raise HarnessError(f"{PREFIX}{method}: undisturbed, status {ended.status}: {ended.err}")
    return ended


def _keep(folder: Path, store: Path, number: int) -> None:
    shutil.copytree(folder, store / "earlier" / f"{number:06d}")


def act(action: str, method: str, folder: Path) -> None:
    if action == "serve":
        serve(method, folder, 2, start_timeout=SHORT)
    else:
        {"predict": predict, "load": load, "report": report}[action](folder)


def answer(action: str, ended: Ended, folder: Path) -> dict[str, str]:
    if action == "serve":
        return all_bits(folder)
    return dict(actions.page(folder / "run")) if action == "report" else {"output": ended.out}
