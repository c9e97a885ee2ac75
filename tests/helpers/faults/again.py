"""Cases of many runs, and of calls in Python: struck at an operation on a file, then started again as before.

`caveat compare` and `caveat audit` have no other command that continues them, nor has a call of `caveat.run`.
"""

from __future__ import annotations

import csv
import hashlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import caveat
from caveat.data.settings import DataSettings, Shift, Split
from caveat.nn.models import ModelSettings
from caveat.training.fit import Training

from .actions import command, python_errors
from .bits import bits
from .children import Ended, in_child
from .material import HarnessError, fresh
from .outcomes import Outcome, compared, cost, differences, failed
from .points import KINDS, Points
from .subjects import BASE, DIGITS
from .warm import warm

PREFIX = "again-"
SETS = [
    part
    for item in [*BASE.split(), *DIGITS.split(), "rounds=2"]
    if not item.startswith(("baselines=", "rounds=3"))
    for part in ("--set", item)
]
TIMED = {"seconds", "s"}
"""The headers of columns that hold times."""


def compare(folder: Path, workers: int) -> None:
    command(
        "compare", "digits", *SETS, "--methods", "fedavg,scaffold", "--seeds", "0", "--out", folder,
        "--workers", workers, "--quiet",
    )  # fmt: skip


def tune(folder: Path, workers: int) -> None:
    """A comparison in which what is chosen depends on what earlier runs came to, and all take one's rounds."""
    command(
        "compare", "digits", *SETS, "--methods", "fedavg,fedper", "--seeds", "0", "--tune", "training.lr=0.01,0.1",
        "--match-rounds", "fedavg", "--out", folder, "--workers", workers, "--quiet",
    )  # fmt: skip


def audit(folder: Path, workers: int) -> None:
    method = ("--set", "method.name=scaffold")
    command(
        "audit", "digits", *SETS, *method, "--seeds", "0", "--fractions", "1/2,1", "--out", folder,
        "--workers", workers, "--quiet",
    )  # fmt: skip


def call(folder: Path, workers: int) -> None:
    """A method with private states, on silos in memory."""
    with python_errors(OSError):
        settings = DataSettings(
            source="digits", n_silos=3, samples_per_silo=24, test_per_silo=8, shift=Shift(angles=(0, -50, 120)),
            split=Split(train=0.6, validation=0.15, calibration=0.25),
        )  # fmt: skip
        model = ModelSettings(name="mlp", width=4, features=4, hidden=4)
        method = caveat.SCAFFOLD(rounds=3, training=Training(optimizer="sgd", lr=0.1, local_epochs=1, batch_size=8))
        caveat.run(caveat.data.load(settings, 0), method, out=folder, model=model, workers=workers)


STARTS: Mapping[str, Callable[[Path, int], None]] = {"compare": compare, "tune": tune, "audit": audit, "call": call}


@dataclass(frozen=True)
class Started:
    """What an undisturbed start has come to."""

    operations: int
    """On files."""
    results: Mapping[str, str]
    ran: Ended


def names(start: str, choose: random.Random, count: int) -> Iterator[str]:
    """So many crash points, chosen at random, some of them of two workers, and some struck again."""
    operations = undisturbed(start).operations
    for _ in range(count):
        kind, number = choose.choice(list(KINDS)), choose.randint(1, operations)
        workers = 2 if choose.random() < 0.15 else 1
        yield f"{PREFIX}{start}:crash:{kind}:{number}:{workers}"
        if choose.random() < 0.2:
            yield f"{PREFIX}{start}:twice:{kind}:{number}:{choose.randint(1, operations)}"


def carry_out(name: str) -> Outcome:
    """What a case has come to."""
    group, what, kind, number, last = name.split(":")
    start, known = STARTS[group.removeprefix(PREFIX)], undisturbed(group.removeprefix(PREFIX))
    workers = int(last) if what == "crash" else 1
    folder = fresh()
    for at in [int(number)] if what == "crash" else [int(number), int(last)]:
        ended = _with(KINDS[kind](str(folder.parent), at), partial(start, folder, workers))
        if kind == "full" or ended.status != -9 or ended.killed:
            found = cost(ended, known.ran)
            if found is not None:
                return found
            if ended.status and not _errors(ended):
                return failed("unnamed", f"status {ended.status} without an error's line: {ended.err}")
    ended = in_child(partial(start, folder, workers))
    found = cost(ended, known.ran)
    if found is not None:
        return found
    if ended.status:
        return failed("status", f"status {ended.status}, expected that it continues: {ended.err}")
    return compared(known.results, results(folder), folder)


def _errors(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("error: ")]


def _with(points: Points, start: Callable[[], None]) -> Ended:
    def carried_out() -> None:
        points.install()
        start()

    return in_child(carried_out)


@cache
def undisturbed(start: str) -> Started:
    """Start it twice, in places of their own, to see that it is repeatable. Raises HarnessError where it is not."""
    warm()
    found = list[Started]()
    for _ in range(2):
        folder = fresh()
        points = Points(str(folder.parent))
        ended = _with(points, partial(STARTS[start], folder, 1))
        if ended.status:
            raise HarnessError(f"{start}: undisturbed, it ends with status {ended.status}: {ended.err}")
        found.append(Started(points.count, results(folder), ended))
    shutil.rmtree(folder)
    if told := differences(found[0].results, found[1].results):
        raise HarnessError(f"{start}: two undisturbed starts differ: {told}")
    return found[1]


def results(folder: Path) -> dict[str, str]:
    """The bits of all runs below a folder and of what came of them together, tables without their columns of times."""
    found = bits(folder)
    for name, cells in (("runs.csv", _csv), ("tables.md", _markdown)):
        if (folder / name).exists():
            rows = _timeless(cells((folder / name).read_text()))
            found[name] = hashlib.sha256(repr(rows).encode()).hexdigest()
    return found


def _csv(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))


def _markdown(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.splitlines()]


def _timeless(rows: list[list[str]]) -> list[list[str]]:
    """Rows without the columns whose header says that they hold times; a header is followed by rows as wide."""
    kept, header = list[list[str]](), list[str]()
    for row in rows:
        if len(row) != len(header):
            header = row
        kept.append([cell for cell, title in zip(row, header, strict=True) if title.strip() not in TIMED])
    return kept
