"""What cases begin with: a finished run of each subject, copies of its folder at earlier points, undamaged answers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from .actions import ACTIONS, Answer, answer, run, write_inputs
from .bits import bits
from .children import Ended, in_child
from .outcomes import differences
from .points import Snapshots
from .subjects import SUBJECTS, Subject
from .warm import warm

POINTS = 8
"""Points of a run at which its folder is copied."""


class HarnessError(Exception):
    """What is wrong before any damage, so that no case says anything."""


@cache
def scratch(process: int) -> Path:
    """The folder of a process for all cases, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="caveat-faults-"))
    atexit.register(_remove, folder, process)
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # no child of it
        shutil.rmtree(folder, ignore_errors=True)


def task() -> Path:
    """Where every case takes place: the same path for all, as files and pages may name it."""
    return scratch(os.getpid()) / "work"


def fresh(source: Path | None = None) -> Path:
    """An empty place for a case: inputs, a user's own folder `outside`, and `run`, which is a copy of a folder."""
    place = task()
    shutil.rmtree(place, ignore_errors=True)
    (place / "outside").mkdir(parents=True)
    (place / "outside" / "own.txt").write_text("the user's own\n")
    write_inputs(place / "inputs.npz")
    if source is not None:
        shutil.copytree(source, place / "run", symlinks=True)
    return place / "run"


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """An undisturbed run, kept to be copied."""

    finished: Path
    earlier: tuple[Path, ...]
    """Its folder at earlier points, the oldest first."""
    operations: int
    """On files, of the whole run."""
    bits: Mapping[str, str]
    ran: Ended

    def folder(self, stage: str) -> Path:
        """The folder of a stage: "finished" or "at-3", the third of the earlier points."""
        return self.finished if stage == "finished" else self.earlier[int(stage.removeprefix("at-"))]


@dataclass(frozen=True, kw_only=True)
class Material(Undisturbed):
    """A subject's."""

    subject: Subject

    @property
    def stages(self) -> list[str]:
        """Those from which a run continues."""
        return [f"at-{i}" for i, folder in enumerate(self.earlier) if (folder / "run.json").exists()]


@cache
def material(name: str) -> Material:
    """Run a subject twice, to see that it is repeatable, and keep copies. Raises HarnessError where it is not."""
    warm()
    subject, store = SUBJECTS[name], scratch(os.getpid()) / "store" / name
    shutil.rmtree(store, ignore_errors=True)
    target = fresh()
    counted = Snapshots(str(target.parent), set(), lambda number: None)
    _well(subject, lambda: (counted.install(), run(subject, target)))
    plain = bits(target)
    numbers = {1 + counted.count * i // POINTS for i in range(1, POINTS)} | {counted.count - 1}
    target = fresh()
    points = Snapshots(str(target.parent), numbers, partial(_keep, target, store))
    ran = _well(subject, lambda: (points.install(), run(subject, target)))
    if told := differences(plain, bits(target)):
        raise HarnessError(f"{name}: two undisturbed runs differ: {told}")
    shutil.copytree(target, store / "finished")
    earlier = tuple(sorted((store / "earlier").iterdir()))
    return Material(
        subject=subject, finished=store / "finished", earlier=earlier, operations=counted.count, bits=plain, ran=ran
    )


@cache
def undamaged(name: str, action: str) -> tuple[Ended, Answer]:
    """How an action ends on an undamaged finished run, and what it answers."""
    known = material(name)
    folder = fresh(known.finished)
    ended = _well(known.subject, partial(ACTIONS[action], known.subject, folder), action)
    return ended, answer(action, ended, folder)


def _well(subject: Subject, call: object, what: str = "run") -> Ended:
    ended = in_child(call)  # type: ignore[arg-type]
    if ended.status:
        raise HarnessError(f"{subject.name}: an undisturbed {what} ends with status {ended.status}: {ended.err}")
    return ended


def _keep(folder: Path, store: Path, number: int) -> None:
    if folder.exists():
        shutil.copytree(folder, store / "earlier" / f"{number:06d}")
