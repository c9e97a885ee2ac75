"""A federation with one malicious silo: the server names it, and the other silos get their model."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from machines import EXPECTED, Failed, Machine, wait_for

MALICIOUS = "malicious"
FOLDER = Path(__file__).parent / "byzantine"
"""Folder that the malicious machine imports from; its code changes what the silo sends."""
WEIGHTS = ("rounds=3", "federation.min_available_silos=4", "federation.quorum=3")
WITHOUT = (*WEIGHTS, "federation.start_timeout=120")
"""The same for a run that continues without the fourth silo, after waiting that many seconds for it."""
ROWS = ("rounds=1", "federation.min_available_silos=4", "federation.quorum=3", "federation.start_timeout=20")
"""Overrides of the server's configuration: it waits for a fourth silo."""


@dataclass(frozen=True)
class Attack:
    """What the malicious silo does, and how the server must report it."""

    name: str
    options: tuple[str, ...]
    check: Callable[[Path, str], str]
    """Checks the run's folder and the server's log. Returns the finding in one line, or raises Failed."""


def attack(server: Machine, method: str, malicious: Machine) -> Iterator[str]:
    """Make two runs with a malicious silo and yield a line of findings each. Raises Failed if one does not end well."""
    for each in (Attack("weights", WEIGHTS, _named_each_round), Attack("rows", ROWS, _set_aside)):
        (malicious.folder / "attack").write_text(each.name)
        run = server.folder / "runs" / f"{method}-{each.name}"
        server.start(each.name, "./run.sh", f"runs/{run.name}", *each.options)
        wait_for("a run with a malicious silo ends", 400, lambda each=each: server.ended(each.name) is not None)
        if status := server.ended(each.name):
            raise Failed(f"a run with a malicious silo ended with status {status}; see {server.log(each.name)}")
        found = each.check(run, server.log(each.name).read_text())
        _sound(run)
        yield found


def go_back(server: Machine, method: str) -> str:
    """Roll the run with false weights back by two rounds and continue it without the malicious silo.

    Return the finding in one line. Raises Failed unless the other silos alone repeat those rounds and complete the run.
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
    if after != {place for place in before if place[0] <= to or place[1] != MALICIOUS}:
        raise Failed(f"rounds and silos of {run.name} are {sorted(after)}")
    _sound(run)
    return f"back to round {to} by command: {len({n for n, _ in after}) - to} rounds made again without {MALICIOUS}"


def _counted(run: Path) -> set[tuple[int, str]]:
    """The rounds and silos whose updates were aggregated."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return {(line["round"], line["silo"]) for line in lines if "silo" in line}


def _named_each_round(run: Path, said: str) -> str:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    bounded = {line["round"]: line["times_bound"] for line in lines if line.get("times_bound") is not None
               and line["silo"] == MALICIOUS}  # fmt: skip
    if len(bounded) < 3:
        raise Failed(f"the malicious silo exceeded the bound in rounds {sorted(bounded)}, expected three")
    named = re.compile(rf"{MALICIOUS}: .*{EXPECTED['bounded']}")
    if len(named.findall(said)) < 3:
        raise Failed("the log does not name the malicious silo in each round")
    times = ", ".join(f"{bounded[number]:,.0f}" for number in sorted(bounded))
    return f"weights times -10, times 100,000 and random: {times} times the bound, each named, and the run is complete"


def _set_aside(run: Path, said: str) -> str:
    if f"silo {MALICIOUS}{EXPECTED['set aside']}" not in said:
        raise Failed("a silo that says to have 10^9 rows was not set aside")
    splits = json.loads((run / "splits.json").read_text())
    if MALICIOUS in json.dumps(splits):
        raise Failed("a silo that says to have 10^9 rows took part")
    return "10^9 rows at the greeting: named, set aside, and the run is complete with the others"


def _sound(run: Path) -> None:
    """Raises Failed unless the federation's model is one that can be used."""
    mean = json.loads((run / "summary.json").read_text())["mean"]["accuracy"]
    if not math.isfinite(mean) or mean < 0.5:
        raise Failed(f"{run.name}: the mean accuracy is {mean}")
