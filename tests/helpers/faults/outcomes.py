"""Whether a case ended as it must: the same bits, or refused with a line that names what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .bits import MOST_VERSIONS, asked_for, versions
from .children import Ended

MOST_SECONDS, MOST_MEGABYTES = 10.0, 1024.0
"""What a case may take beyond the undamaged command."""
REFUSED = (2, 3, 4)
SAME, REFUSAL, SAID = "same bits", "refused", "other bits, and said so"
"""Of the last: the folder says that a silo was left out or reset, or the page that the run is unfinished."""
GOOD = (SAME, REFUSAL, SAID)
FAILURES = {
    "other bits": "status 0 with another result",
    "outside": "a file outside the run's folder has changed",
    "leftover": "a temporary file or an old state is left behind",
    "killed": "too slow or too large",
    "cost": f"more than {MOST_SECONDS:.0f} s or {MOST_MEGABYTES:.0f} MB beyond the undamaged command",
    "traceback": "a traceback",
    "status": "another status than 0, 2, 3 or 4",
    "unnamed": "refused without a line that names the file or key",
}
"""What is no good outcome, the worst first."""


@dataclass(frozen=True)
class Outcome:
    """What a case has come to, one of GOOD and FAILURES, and what tells it."""

    kind: str
    told: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def failed(kind: str, told: str) -> Outcome:
    return Outcome(kind, told[-600:])


def cost(ended: Ended, undamaged: Ended) -> Outcome | None:
    """The failure of a command that took far more than it would have, or ended as no command may."""
    if ended.killed:
        return failed("killed", ended.killed)
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return failed("traceback", ended.err)
    if ended.status not in (0, *REFUSED):
        return failed("status", f"status {ended.status}: {ended.err}")
    seconds, megabytes = ended.seconds - undamaged.seconds, ended.megabytes - undamaged.megabytes
    if seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES:
        return failed("cost", f"{seconds:.1f} s and {megabytes:.0f} MB beyond the undamaged command")
    return None


def refusal(ended: Ended, names: Iterable[str]) -> Outcome:
    """Of a command that did not end with status 0: whether a line of its errors has one of the names."""
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if not errors:
        return failed("unnamed", f"status {ended.status} without an error's line: {ended.err}")
    told = "\n".join(errors)
    if any(name and name in line for line in errors for name in names):
        return Outcome(REFUSAL, told)
    return failed("unnamed", told)


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    names = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    return ", ".join(
        f"{name}{' is missing' if name not in found else ' is new' if name not in expected else ''}" for name in names
    )


def compared(expected: Mapping[str, str], found: Mapping[str, str], folder: Path) -> Outcome:
    """Whether these are the same bits, and nothing else lies about."""
    if told := differences(expected, found):
        only_new = all(found.get(name) == value for name, value in expected.items())
        return failed("leftover" if only_new else "other bits", told)
    if left := leftovers(folder):
        return failed("leftover", ", ".join(left))
    return Outcome(SAME)


def leftovers(folder: Path) -> list[str]:
    """Temporary files that a command has left, and states that nothing needs any more."""
    left = [path for path in folder.rglob(".*") if path.is_file() or path.is_symlink()]
    for home, states in versions(folder).items():
        needed = asked_for(home)
        left += [path for path in states[:-MOST_VERSIONS] if path.name not in needed]
    return [str(path.relative_to(folder)) for path in left]
