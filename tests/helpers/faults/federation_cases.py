"""Cases of federations: their names, and how each is carried out."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from . import actions
from .bits import concerns, tree
from .children import Ended, in_child
from .damages import SEEDED, Place, apply, possible
from .federation import (
    AFTER,
    LONG,
    PREFIX,
    SHORT,
    SILO,
    Federated,
    act,
    all_bits,
    answer,
    federated,
    federation_name,
    fresh,
    serve,
    undamaged,
)
from .outcomes import REFUSED, SAID, Outcome, compared, cost, differences, failed, refusal
from .points import KINDS

DATA = re.compile(r"data-[0-9a-f]{16}")
"""A hash of where tables lie, among others, which cases are the same without."""

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
                            yield f"{PREFIX}{method}:{stage}:{action}:{DATA.sub('data-*', target)}:{damage}:{seed}"


def crash_names(method: str, choose: random.Random, count: int) -> Iterator[str]:
    for number in choose.sample(range(1, federated(method).operations + 1), count):
        yield f"{PREFIX}{method}:crash:{choose.choice(sorted(KINDS))}:{number}"


# Carrying out


def _actual(target: str, folder: Path) -> str:
    """A file's path below a folder, by its name in a case."""
    return str(next(folder.glob(target)).relative_to(folder)) if "*" in target else target


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
    target = _actual(target, folder)
    place = Place(folder, target, folder.parent / "outside", earlier)
    apply(place, damage, int(seed))
    outside, damaged = tree(place.outside), tree(folder)
    ended = _without_logs(in_child(partial(act, action, known.method, folder)))
    if told := differences(outside, tree(place.outside)):
        return failed("outside", told)
    found = cost(ended, known.ran if action == "serve" else usual)
    if found is not None:
        return found
    if ended.status in REFUSED:
        files = {path.name for source in (known.finished, *known.earlier) for path in source.rglob("*")}
        return refusal(ended, files | {Path(target).name, SILO} | actions.keys_in(ended.err))
    if action == "serve" and _said_left_out(folder):
        return Outcome(SAID)
    if action == "serve":
        return _served(known, what, target, folder, damaged)
    if action == "report" and actions.unfinished(folder / "run"):
        return Outcome(SAID)
    return compared(expected, answer(action, ended, folder), folder / "run")


def _served(known: Federated, stage: str, target: str, folder: Path, damaged: Mapping[str, str]) -> Outcome:
    found, expected = all_bits(folder), dict(known.bits)
    now, over = tree(folder), (known.folder(stage) / "run" / "summary.json").exists()
    for name in {*expected, *found}:
        place = _path(name, known)
        # What nobody had a reason to read is still as it was damaged.
        if concerns(target, place) and over and damaged.get(place) == now.get(place):
            expected.pop(name, None), found.pop(name, None)
    return compared(expected, found, folder / "run")


def _path(name: str, known: Federated) -> str:
    """Where a file of `all_bits` lies below the federation's folder."""
    owner, file = name.split("/", 1)
    return f"run/{file}" if owner == "server" else f"silos/{owner}/{federation_name(known.finished)}/{file}"


def _crash(known: Federated, kind: str, number: int) -> Outcome:
    folder = fresh()
    points = KINDS[kind](str(folder), number)
    # On a full disk silos fail, for whom it is not worth waiting.
    start_timeout = SHORT if kind == "full" else LONG
    ended = _without_logs(in_child(partial(serve, known.method, folder, 1, points, start_timeout)))
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
        return Outcome(SAID) if kind == "full" else failed("other bits", "a silo was left out")
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
