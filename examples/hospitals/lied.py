"""What becomes of a federation in which one machine's silo lies: it is named, and the others have their model."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from machines import Failed, Machine, wait_for

LIAR = "liar"
FOLDER = Path(__file__).parent / LIAR
"""What its machine imports, which changes what it sends."""
WEIGHTS = ("rounds=3", "federation.min_available_silos=4", "federation.quorum=3")
WITHOUT = (*WEIGHTS, "federation.start_timeout=120")
"""The same for a run that goes on without the fourth, for which it waits so many seconds."""
ROWS = ("rounds=1", "federation.min_available_silos=4", "federation.quorum=3", "federation.start_timeout=20")
"""What the server's configuration says beside its file: a fourth silo is waited for."""


@dataclass(frozen=True)
class Lie:
    """What the liar does, and what has to be said of it."""

    name: str
    options: tuple[str, ...]
    check: Callable[[Path, str], str]
    """Of the run's folder and what the server has said: raises Failed, or says in a line what was found."""


def tell_lies(server: Machine, method: str, liar: Machine) -> Iterator[str]:
    """Two runs with a liar among the silos; what was found, a line each. Raises Failed where one does not end well."""
    for lie in (Lie("weights", WEIGHTS, _named_each_round), Lie("rows", ROWS, _set_aside)):
        (liar.folder / "lie").write_text(lie.name)
        run = server.folder / "runs" / f"{method}-{lie.name}"
        server.start(lie.name, "./run.sh", f"runs/{run.name}", *lie.options)
        wait_for("a run with a liar ends", 400, lambda lie=lie: server.ended(lie.name) is not None)
        if status := server.ended(lie.name):
            raise Failed(f"a run with a liar ended with status {status}; see {server.log(lie.name)}")
        found = lie.check(run, server.log(lie.name).read_text())
        _sound(run)
        yield found


def go_back(server: Machine, method: str) -> str:
    """The run with false weights goes back by two rounds, and on without the liar; what was found, in a line.

    Raises Failed unless the rounds after that one are made again by the others alone, and the run is complete.
    """
    run = server.folder / "runs" / f"{method}-weights"
    before = _counted(run)
    to = max(number for number, _ in before) - 2
    told = server.call(sys.executable, "-m", "caveat", "rollback", str(run), "--to", str(to))
    if (run / "summary.json").exists() or _counted(run) != {place for place in before if place[0] <= to}:
        raise Failed(f"{run.name} has not gone back to round {to}: {told}")
    server.start("back", "./run.sh", f"runs/{run.name}", *WITHOUT)
    wait_for("a run that went back ends", 600, lambda: server.ended("back") is not None)
    if status := server.ended("back"):
        raise Failed(f"a run that went back ended with status {status}; see {server.log('back')}")
    after = _counted(run)
    if after != {place for place in before if place[0] <= to or place[1] != LIAR}:
        raise Failed(f"rounds and silos of {run.name} are {sorted(after)}")
    _sound(run)
    return f"back to round {to} by command: {len({n for n, _ in after}) - to} rounds made again without {LIAR}"


def _counted(run: Path) -> set[tuple[int, str]]:
    """The rounds, and the silos that sent something in them that was counted."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return {(line["round"], line["silo"]) for line in lines if "silo" in line}


def _named_each_round(run: Path, said: str) -> str:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    bounded = {line["round"]: line["times_bound"] for line in lines if line.get("times_bound") is not None
               and line["silo"] == LIAR}  # fmt: skip
    if len(bounded) < 3:
        raise Failed(f"the liar exceeded the bound in rounds {sorted(bounded)}, expected three")
    if said.count(f"{LIAR}: its update was") < 3:
        raise Failed("the log does not name the liar in each round")
    times = ", ".join(f"{bounded[number]:,.0f}" for number in sorted(bounded))
    return f"weights times -10, times 100,000 and random: {times} times the bound, each named, and the run is complete"


def _set_aside(run: Path, said: str) -> str:
    if f"silo {LIAR} is set aside" not in said:
        raise Failed("a silo that says to have 10^9 rows was not set aside")
    splits = json.loads((run / "splits.json").read_text())
    if LIAR in json.dumps(splits):
        raise Failed("a silo that says to have 10^9 rows took part")
    return "10^9 rows at the greeting: named, set aside, and the run is complete with the others"


def _sound(run: Path) -> None:
    """Raises Failed unless the federation's model is one that can be used."""
    mean = json.loads((run / "summary.json").read_text())["mean"]["accuracy"]
    if not math.isfinite(mean) or mean < 0.5:
        raise Failed(f"{run.name}: the mean accuracy is {mean}")
