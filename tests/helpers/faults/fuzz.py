"""Fuzz: a configuration, a data source or inputs for a prediction, made wrong by a seed; and how each is carried out.

A mutation is a function of a generator and a place. It makes files there, and says what is called and what must be.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .actions import command
from .bits import tree
from .children import Ended, in_child
from .material import HarnessError, fresh, scratch
from .outcomes import REFUSED, SAME, Outcome, cost, differences, failed, refusal
from .warm import warm

UNDAMAGED = Ended(0, "", "", 0.5, 450.0)
"""What a command takes with good input, generously."""


@dataclass(frozen=True)
class Trial:
    """One call with bad input, and what may come of it."""

    call: Callable[[], None]
    names: Iterable[str]
    """Of files or keys, one of which a refusal must name."""
    about: str
    """The mutation, for whoever reads a failure."""
    accepted: Callable[[Ended], str] = field(default=lambda ended: "")
    """What is wrong with status 0; empty if nothing is."""


Fuzz = Callable[[random.Random, Path], Trial]


def carry_out(families: Mapping[str, Fuzz], name: str) -> Outcome:
    """Of a case fuzz:FAMILY:SEED."""
    warm()
    family = name.split(":")[1]
    place = fresh().parent
    trial = families[family](random.Random(name), place)
    outside = tree(place / "outside")
    ended = in_child(trial.call)
    if told := differences(outside, tree(place / "outside")):
        return failed("outside", f"{trial.about}: {told}")
    found = cost(ended, UNDAMAGED)
    if found is None and ended.status in REFUSED:
        found = refusal(ended, trial.names)
    if found is None:
        wrong = trial.accepted(ended)
        found = failed("other bits", wrong) if wrong else Outcome(SAME)
    return found if found.good else Outcome(found.kind, f"{trial.about[:200]}: {found.told}")


def run(folder: Path, *sets: str) -> Callable[[], None]:
    """A call of `caveat run` with a configuration beside."""
    items = [part for item in sets for part in ("--set", item)]
    return lambda: command("run", "digits", *items, "--out", folder, "--quiet")


@cache
def good_run(name: str, write: Callable[[Path], str], *sets: str) -> Path:
    """The folder of a run on good data, which `write` writes to a folder; it returns what the source is called."""
    folder = scratch(os.getpid()) / "store" / f"good-{name}"
    folder.mkdir(parents=True)
    ended = in_child(run(folder / "run", f"data.source={write(folder)}", *sets))
    if ended.status:
        raise HarnessError(f"a run on good data: {ended.err}")
    return folder / "run"
