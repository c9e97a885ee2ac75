"""Cases of federations on Flower: three hospitals and their server in one process, each with a folder of its own.

What is damaged is the server's folder of the run, or what one of the silos keeps. A federation may go on without a
silo that has lost its state, if it says so.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from . import actions
from .bits import bits, tree
from .children import Ended, in_child
from .damages import SEEDED, Place, apply, possible
from .material import POINTS, HarnessError, scratch, work
from .outcomes import LEFT_OUT, REFUSED, Outcome, compared, cost, differences, failed, refusal
from .points import KINDS, Points, Snapshots
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


@dataclass(frozen=True)
class Federated:
    """A federation's undisturbed run, kept to be copied."""

    method: str
    finished: Path
    earlier: tuple[Path, ...]
    operations: int
    bits: Mapping[str, str]
    ran: Ended

    def folder(self, stage: str) -> Path:
        return self.finished if stage == "finished" else self.earlier[int(stage.removeprefix("at-"))]


def serve(method: str, folder: Path, nth: int = 1, points: Points | None = None, patience: float = LONG) -> None:
    """Carry out a federation, or what is left of it; `nth` keeps names apart that are drawn by chance."""
    import hospitals

    from caveat.federation import membership

    membership.PAUSE = 0.001
    drawn = iter(range(1000))
    secrets.token_hex = lambda size=32: f"{nth}{next(drawn):03d}".rjust(2 * size, "a")
    tables = folder.parent / "tables"
    shutil.rmtree(tables, ignore_errors=True)
    federation = hospitals.Federation(tables, method, ROUNDS, patience=patience)
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
    name = _name(folder)
    found = {f"server/{file}": value for file, value in bits(folder / "run").items()}
    for silo in sorted((folder / "silos").glob("*")):
        of_silo = bits(silo / name) if name else {}
        # What is sent again after an interruption is there again, for it has left the silo again.
        of_silo |= {file: _lines(silo / name / file) for file in of_silo if file.endswith("ledger.jsonl")}
        found |= {f"{silo.name}/{file}": value for file, value in of_silo.items()}
    return found


def _lines(path: Path) -> str:
    """The different lines of a file."""
    return "".join(sorted(set(path.read_text(errors="replace").splitlines(keepends=True))))


def _name(folder: Path) -> str:
    """The federation's name, which is the folder that silos have of it."""
    try:
        return str(json.loads((folder / "run" / "federation.json").read_text())["federation"])
    except (OSError, ValueError, KeyError):
        return ""


# What cases begin with


def fresh(source: Path | None = None) -> Path:
    """An empty place for a case, or with a copy of a federation's folders."""
    place = work()
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
    import caveat.federation.server  # noqa: F401

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
    return Federated(method, store / "finished", earlier, count, plain, ran)


@cache
def undamaged(method: str, action: str) -> tuple[Ended, dict[str, str]]:
    """How an action ends after an undisturbed federation, and what it answers."""
    folder = fresh(federated(method).finished)
    ended = _well(method, partial(_act, action, method, folder))
    return ended, _answer(action, ended, folder)


def _well(method: str, call: partial[None]) -> Ended:
    ended = in_child(call)
    if ended.status:
        raise HarnessError(f"{PREFIX}{method}: undisturbed, status {ended.status}: {ended.err}")
    return ended


def _keep(folder: Path, store: Path, number: int) -> None:
    shutil.copytree(folder, store / "earlier" / f"{number:06d}")


def _act(action: str, method: str, folder: Path) -> None:
    if action == "serve":
        serve(method, folder, 2, patience=SHORT)
    else:
        {"predict": predict, "load": load, "report": report}[action](folder)


def _answer(action: str, ended: Ended, folder: Path) -> dict[str, str]:
    if action == "serve":
        return all_bits(folder)
    return dict(actions.page(folder / "run")) if action == "report" else {"output": ended.out}


# Names


def names(method: str) -> Iterator[str]:
    """Every damage to what the server and one silo have."""
    known = federated(method)
    for i, folder in [(None, known.finished), *enumerate(known.earlier)]:
        earlier = known.earlier if i is None else known.earlier[:i]
        ours = sorted((folder / "run").rglob("[!.]*"))
        theirs = sorted((folder / "silos" / SILO).rglob("[!.]*"))
        stage = "finished" if i is None else f"at-{i}"
        for path in (*ours, *theirs):
            target = str(path.relative_to(folder))
            for damage in possible(Place(folder, target, folder, earlier)):
                for seed in range(SEEDED.get(damage, 1)):
                    for action in AFTER if i is None else ("serve",):
                        if action == "serve" or (action == "report") == (path in ours):
                            yield f"{PREFIX}{method}:{stage}:{action}:{target}:{damage}:{seed}"


def crash_names(method: str, choose: random.Random, count: int) -> Iterator[str]:
    for number in choose.sample(range(1, federated(method).operations + 1), count):
        yield f"{PREFIX}{method}:crash:{choose.choice(sorted(KINDS))}:{number}"


# Carrying out


def carry_out(name: str) -> Outcome:
    """What a case of a federation has come to."""
    subject, what, *rest = name.split(":")
    known = federated(subject.removeprefix(PREFIX))
    if what == "crash":
        return _crash(known, rest[0], int(rest[1]))
    action, target, damage, seed = rest
    usual, expected = undamaged(known.method, action)
    folder = fresh(known.folder(what))
    earlier = known.earlier if what == "finished" else known.earlier[: int(what.removeprefix("at-"))]
    place = Place(folder, target, folder.parent / "outside", earlier)
    apply(place, damage, int(seed))
    outside, damaged = tree(place.outside), tree(folder)
    ended = _without_logs(in_child(partial(_act, action, known.method, folder)))
    if told := differences(outside, tree(place.outside)):
        return failed("outside", told)
    found = cost(ended, known.ran if action == "serve" else usual)
    if found is not None:
        return found
    if ended.status in REFUSED:
        files = {path.name for source in (known.finished, *known.earlier) for path in source.rglob("*")}
        return refusal(ended, files | {Path(target).name, SILO} | actions.keys_in(ended.err))
    if action == "serve" and _said_left_out(folder):
        return Outcome(LEFT_OUT)
    if action == "serve":
        return _served(known, what, target, folder, damaged)
    return compared(expected, _answer(action, ended, folder), folder / "run")


def _served(known: Federated, stage: str, target: str, folder: Path, damaged: Mapping[str, str]) -> Outcome:
    found, expected = all_bits(folder), dict(known.bits)
    now, over = tree(folder), (known.folder(stage) / "run" / "summary.json").exists()
    for name in {*expected, *found} if over else ():
        place = _path(name, known)
        within = place == target or place.startswith(f"{target}/")
        # What nobody had a reason to read is still as it was damaged.
        if within and damaged.get(place) == now.get(place):
            expected.pop(name, None), found.pop(name, None)
    return compared(expected, found, folder / "run")


def _path(name: str, known: Federated) -> str:
    """Where a file of `all_bits` lies below the federation's folder."""
    owner, file = name.split("/", 1)
    return f"run/{file}" if owner == "server" else f"silos/{owner}/{_name(known.finished)}/{file}"


def _crash(known: Federated, kind: str, number: int) -> Outcome:
    folder = fresh()
    points = KINDS[kind](str(folder), number)
    # On a full disk silos fail, for whom it is not worth waiting.
    patience = SHORT if kind == "full" else LONG
    ended = _without_logs(in_child(partial(serve, known.method, folder, 1, points, patience)))
    if ended.status != -9 or ended.killed:
        found = cost(ended, known.ran)
        if found is not None:
            return found
    ended = _without_logs(in_child(partial(serve, known.method, folder, 2)))
    found = cost(ended, known.ran)
    if found is not None:
        return found
    if ended.status:
        return failed("status", f"status {ended.status}, expected that it continues: {ended.err}")
    if _said_left_out(folder):
        return Outcome(LEFT_OUT) if kind == "full" else failed("other bits", "a silo was left out")
    return compared(known.bits, all_bits(folder), folder / "run")


def _said_left_out(folder: Path) -> bool:
    """Whether the rows of a run say that it went on without a silo."""
    try:
        return "left_out" in (folder / "run" / "rounds.jsonl").read_text()
    except (OSError, UnicodeDecodeError):
        return False


def _without_logs(ended: Ended) -> Ended:
    """What a silo writes to its own log has tracebacks on purpose; what ends the server would be status 1."""
    if ended.status == 1:
        return ended
    return dataclasses.replace(ended, err=ended.err.replace("Traceback", "In a silo's log"))


__all__ = ["METHODS", "PREFIX", "carry_out", "crash_names", "names"]
