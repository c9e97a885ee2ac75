"""Cases: their names, which reproduce them alone, and how each is carried out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .actions import ACTIONS, PAGE, answer, resume, run, unfinished, without_beside
from .bits import bits, concerns, tree
from .children import Ended, in_child
from .damages import LINKS, SEEDED, Place, apply, possible, targets
from .material import Material, fresh, material, undamaged
from .outcomes import REFUSED, SAID, Outcome, compared, cost, differences, failed, refusal
from .points import KINDS

SEPARATOR = ":"
"""Of the parts of a name: SUBJECT:crash:KIND:NUMBER:WORKERS, SUBJECT:twice:KIND:NUMBER:NUMBER,
SUBJECT:STAGE:ACTION:FILE:DAMAGE:SEED and SUBJECT:STAGE:older-folder; `told_cases.py` has others."""


NEWEST, DURABLE = "state/checkpoint.json", "state/checkpoint-durable.json"


def crash_names(subject: str, choose: random.Random | None = None, count: int = 0) -> Iterator[str]:
    """Crash points at every operation of a run, of every kind; or `count` of them, chosen at random."""
    known = material(subject)
    points = [(kind, number) for number in range(1, known.operations + 1) for kind in KINDS]
    for kind, number in points if choose is None else choose.sample(points, min(count, len(points))):
        workers = 2 if choose is not None and choose.random() < 0.15 else 1
        yield f"{subject}:crash:{kind}:{number}:{workers}"
        if choose is not None and choose.random() < 0.2:
            yield f"{subject}:twice:{kind}:{number}:{choose.randrange(1, known.operations)}"


def damage_names(subject: str) -> Iterator[str]:
    """Every damage to every file and folder of a run, finished or interrupted, and what is done then."""
    known = material(subject)
    for stage in ("finished", *known.stages):
        actions = list(ACTIONS) if stage == "finished" else ["resume"]
        for target in targets(known.folder(stage)):
            for damage in possible(_place(known, stage, target, known.folder(stage))):
                for seed in range(SEEDED.get(damage, 1)):
                    for action in actions:
                        yield SEPARATOR.join((subject, stage, action, target, damage, str(seed)))


def older_folder_names(subject: str) -> Iterator[str]:
    for stage in material(subject).stages:
        yield f"{subject}:{stage}:older-folder"


def carry_out(name: str) -> Outcome:
    """What a case has come to."""
    subject, what, *rest = name.split(SEPARATOR)
    known = material(subject)
    if what == "crash":
        return _crash(known, rest[0], int(rest[1]), int(rest[2]))
    if what == "twice":
        return _crash(known, rest[0], int(rest[1]), 1, int(rest[2]))
    if rest == ["older-folder"]:
        return _continued(known, fresh(known.folder(what)))
    action, target, damage, seed = rest
    return _damaged(known, what, action, target, damage, int(seed))


# Crashes


def _crash(known: Material, kind: str, number: int, workers: int, again: int = 0) -> Outcome:
    folder = fresh()
    struck = _struck(folder, kind, number, partial(run, known.subject, folder, f"engine.workers={workers}"))
    found = _how_it_crashed(struck, kind, known)
    if found is not None:
        return found
    if again and (folder / "run.json").exists():
        struck = _struck(folder, kind, again, partial(resume, known.subject, folder))
        found = _how_it_crashed(struck, kind, known)
        if found is not None:
            return found
    return _continued(known, folder)


def _struck(folder: Path, kind: str, number: int, call: partial[None]) -> Ended:
    points = KINDS[kind](str(folder.parent), number)

    def carried_out() -> None:
        points.install()
        call()

    return in_child(carried_out)


def _how_it_crashed(ended: Ended, kind: str, known: Material) -> Outcome | None:
    """The failure of a run that did not end as such a crash ends it, or that ran through."""
    if kind != "full" and ended.status == -9 and not ended.killed:
        return None
    found = cost(ended, known.ran)
    if found is not None or ended.status == 0:
        return found
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if len(lines) != 1:
        return failed("unnamed", f"status {ended.status}, expected one line: {ended.err}")
    return None


def _continued(known: Material, folder: Path) -> Outcome:
    """A run continues to the same bits, with the command that began it where there is nothing to resume."""
    begun = (folder / "run.json").exists()
    ended = in_child(partial(resume if begun else run, known.subject, folder))
    found = cost(ended, known.ran)
    if found is not None:
        return found
    if ended.status:
        return failed("status", f"status {ended.status}, expected that it continues: {ended.err}")
    return compared(known.bits, bits(folder), folder)


# Damage


def _place(known: Material, stage: str, target: str, folder: Path) -> Place:
    earlier = known.earlier if stage == "finished" else known.earlier[: int(stage.removeprefix("at-"))]
    return Place(folder, target, folder.parent / "outside", earlier)


def _damaged(known: Material, stage: str, action: str, target: str, damage: str, seed: int) -> Outcome:
    usual, expected = undamaged(known.subject.name, action)
    folder = fresh(known.folder(stage))
    place = _place(known, stage, target, folder)
    apply(place, damage, seed)
    outside, damaged = tree(place.outside), tree(folder)
    ended = in_child(partial(ACTIONS[action], known.subject, folder))
    if told := differences(outside, tree(place.outside)):
        return failed("outside", told)
    found = cost(ended, known.ran if action == "resume" else usual)
    if found is not None:
        return found
    if ended.status in REFUSED:
        return _refused(known, ended, target)
    return _same(known, stage, action, target, dict(expected), folder, damaged, ended)


def _refused(known: Material, ended: Ended, target: str) -> Outcome:
    """A refusal may name any file of the run: which of two that disagree is damaged nobody can tell."""
    names = {Path(name).name for name in targets(known.finished)} | {Path(target).name}
    names |= {path.name for folder in known.earlier for path in folder.rglob("*")}
    names |= {"is not finished"} if target == "summary.json" else set()  # without it no run is
    return refusal(ended, names)


def _same(
    known: Material, stage: str, action: str, target: str, expected: dict[str, str], folder: Path,
    damaged: dict[str, str], ended: Ended,
) -> Outcome:  # fmt: skip
    found = dict(answer(action, ended, folder))
    if action == "report" and (unfinished(folder) or without_beside(folder)):
        return Outcome(SAID)
    over = (known.folder(stage) / "summary.json").exists()
    fell_back = target == NEWEST and not over and damaged.get(DURABLE) not in (None, damaged.get(NEWEST))
    if action == "resume" and fell_back and "/state/" not in ended.err:
        return failed("unnamed", f"went on after an older checkpoint, and said nothing of {target}")
    if action == "resume":
        if not _unchanged(known.finished / "summary.json", folder / "summary.json"):
            # Carried out anew, in other times, which the page shows.
            expected.pop(PAGE, None), found.pop(PAGE, None)
        now = tree(folder)
        for name in {*expected, *found}:
            # What the command had no reason to read is still as it was damaged.
            if concerns(target, name) and over and damaged.get(name) == now.get(name):
                expected.pop(name, None), found.pop(name, None)
    return compared(expected, found, folder)


def _unchanged(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.read_bytes() == b.read_bytes()


__all__ = ["LINKS", "carry_out", "crash_names", "damage_names", "older_folder_names"]
