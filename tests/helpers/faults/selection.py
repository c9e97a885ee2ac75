"""Which cases are carried out: samples drawn by a seed, for the tests and for the long form."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import (
    again,
    cases,
    federation,
    federation_cases,
    fuzz,
    fuzz_arrays,
    fuzz_config,
    fuzz_images,
    fuzz_tables,
    told_cases,
)
from .actions import ACTIONS
from .outcomes import Outcome
from .subjects import SUBJECTS

FAMILIES: Mapping[str, fuzz.Fuzz] = {
    **fuzz_config.FAMILIES, **fuzz_tables.FAMILIES, **fuzz_arrays.FAMILIES, **fuzz_images.FAMILIES,
}  # fmt: skip


@dataclass(frozen=True)
class Extent:
    """How many cases of each kind."""

    interrupted: int
    """Damages to an interrupted run, per subject, as are the next three."""
    finished: int
    """Damages to a finished run, for each thing that is done with it."""
    actions: int
    """So many of those things."""
    crashes: int
    older_folders: int
    told: int
    """Silos that begin afresh and keys that were edited, per subject."""
    again: int
    """Crashes of what is started again: comparisons, audits, calls in Python, each."""
    federated: int
    """Damages, and half as many crashes, per method of a federation."""
    fuzz: int
    """Per family."""


SHORT = Extent(interrupted=2, finished=1, actions=2, crashes=1, older_folders=1, told=1, again=1, federated=4, fuzz=8)
LONG = Extent(
    interrupted=60,
    finished=25,
    actions=len(ACTIONS),
    crashes=60,
    older_folders=8,
    told=10,
    again=60,
    federated=40,
    fuzz=60,
)


def groups() -> list[str]:
    """Names of groups of cases that are carried out after each other, as they share what they begin with."""
    flower = [f"{federation.PREFIX}{method}" for method in federation.METHODS]
    started = [f"{again.PREFIX}{start}" for start in again.STARTS]
    return [*SUBJECTS, *started, *flower, *(f"fuzz:{family}" for family in FAMILIES)]


def names(group: str, extent: Extent, seed: int = 0) -> Iterator[str]:
    """The cases of a group."""
    choose = random.Random(f"{group} {seed}")
    if group.startswith("fuzz:"):
        yield from (f"{group}:{seed * extent.fuzz + i}" for i in range(extent.fuzz))
    elif group.startswith(again.PREFIX):
        yield from again.names(group.removeprefix(again.PREFIX), choose, extent.again)
    elif group.startswith(federation.PREFIX):
        method = group.removeprefix(federation.PREFIX)
        yield from _spread(list(federation_cases.names(method)), extent.federated, choose)
        yield from federation_cases.crash_names(method, choose, extent.federated // 2)
    else:
        found = list(cases.damage_names(group))
        yield from _spread([name for name in found if ":finished:" not in name], extent.interrupted, choose)
        for action in list(ACTIONS) if extent.actions == len(ACTIONS) else choose.sample(list(ACTIONS), extent.actions):
            yield from _spread([name for name in found if f":finished:{action}:" in name], extent.finished, choose)
        yield from cases.crash_names(group, choose, extent.crashes)
        older = list(cases.older_folder_names(group))
        yield from choose.sample(older, min(len(older), extent.older_folders))
        told = list(told_cases.names(group))
        yield from choose.sample(told, min(len(told), extent.told))


def _spread(found: list[str], count: int, choose: random.Random) -> list[str]:
    """So many of them: each kind of damage to each kind of file is as likely as any other, a flipped bit twice."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name in found:
        target, damage = name.split(":")[-3:-1]
        kinds.setdefault((damage, "".join(c for c in target if not c.isdigit())), []).append(name)
    order = [*kinds, *(kind for kind in kinds if kind[0] == "flip")]
    choose.shuffle(order)
    chosen: list[str] = []
    while len(chosen) < min(count, len(found)):
        for kind in order:
            if kinds[kind] and len(chosen) < count:
                chosen.append(kinds[kind].pop(choose.randrange(len(kinds[kind]))))
    return chosen


def carry_out(name: str) -> Outcome:
    """What a case has come to, whichever it is."""
    if name.startswith("fuzz:"):
        return fuzz.carry_out(FAMILIES, name)
    if name.startswith(again.PREFIX):
        return again.carry_out(name)
    if name.startswith(federation.PREFIX):
        return federation_cases.carry_out(name)
    what = name.split(":")[2]
    return (told_cases if what == "reset" or what.startswith("edit=") else cases).carry_out(name)


def failures(group: str, extent: Extent, seed: int = 0) -> dict[str, Outcome]:
    """The cases of a group that do not end as they must."""
    return {name: found for name in names(group, extent, seed) if not (found := carry_out(name)).good}
