"""The server's messages about a run, in a file next to the run's folder, and its status.

The file is not in the folder, which does not exist until silos have joined: messages about this wait are the most
useful ones.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ...core import ConfigurationError, RunError
from ...core.text import escaped, plural
from ...files import held, privately, read_ledger, read_sent, refuse_link
from ...files.schema import NO_PART
from ...runs.progress import Plain

LAST = 12
"""Number of last messages to show."""
FAILED = "the run has failed: "
"""Beginning of the line with the error of a failed run."""

ROUND = re.compile(r" round +(\d+)/(\d+) ")
"""The message after a round is aggregated."""
NODE = re.compile(r"^\S+ \S+ node (\d+) is silo (.+)$")
"""The message when a silo connects, or uses another node."""
LATE = re.compile(rf" (silo \S+ {NO_PART}, .*)$")
"""The message for a silo that joins after training."""
BACK = re.compile(r" was rolled back to round (\d+):")
"""The message after a run was rolled back."""


def log_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.log")


class Dated(Plain):
    """Print one line per round and note to standard error, and to a file with the time."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def _print(self, line: str) -> None:
        super()._print(line)
        _dated(line, self._file)


def _dated(line: str, file: TextIO) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), escaped(line), file=file, flush=True)


def lock_of(folder: Path) -> Path:
    """Return the lock of a run's folder, which is next to it, because the folder may not exist yet."""
    return folder.with_name(f".{folder.name}.lock")


def check_free(folder: Path) -> None:
    """Raise RunError if another process executes the run in a folder."""
    with held(lock_of(folder), f"{folder} is being run by another process"):
        pass


@contextmanager
def logged(folder: Path) -> Iterator[Dated]:
    """Also write the server's messages and the outcome to the private file next to its folder."""
    path = log_of(folder)
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", opener=privately) as file:
        progress = Dated(file)
        try:
            yield progress
        except Exception as error:
            first, *more = str(error).splitlines() or [type(error).__name__]
            for line in (*more, f"{FAILED}{first}"):  # the last line has the outcome of a run
                progress.note(line)
            raise
        progress.note("the run is complete")


def say(folder: Path, text: str) -> None:
    """Add a line to the server's messages about a command that changed its folder."""
    path = log_of(folder)
    refuse_link(path)
    with open(path, "a", encoding="utf-8", opener=privately) as file:
        _dated(text, file)


def status_of(folder: Path) -> list[str]:
    """Return lines about a run at its server: its progress, when each silo was last aggregated, the last messages.
    Raises ConfigurationError if there is no such run."""
    path, said = log_of(folder), list[str]()
    with suppress(OSError):
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not said and not folder.is_dir():
        raise ConfigurationError(f"{folder}: no run, and no {path.name} next to it; expected a run's folder")
    late = sorted({found[1] for line in said if (found := LATE.search(line))})
    return [
        *_how_far(folder, said),
        *_secured(folder),
        *_silos(folder, said),
        *late,
        *(["", *said[-LAST:]] if said else []),
    ]


def _how_far(folder: Path, said: list[str]) -> list[str]:
    if (folder / "summary.json").exists():
        return [f"{folder}: complete"]
    last = planned = ""
    for line in said:
        if counted := ROUND.search(line):
            last, planned = counted.groups()
        elif back := BACK.search(line):
            last = back[1]
    rounds = f"{last} of up to {planned} rounds" if planned else "no round aggregated yet"
    _, failed, why = said[-1].partition(FAILED) if said else ("", "", "")
    state = f"failed; start it again to continue: {why}" if failed else _whether_alive(folder)
    return [f"{folder}: {rounds}; {state}"]


def _secured(folder: Path) -> list[str]:
    """Return of which messages the server saw only sums; nothing without secure aggregation."""
    sent = read_sent(folder / "ledger.jsonl") if (folder / "ledger.jsonl").exists() else None
    uses = [] if sent is None else [(purpose, sent.forms[form].summed) for form, purpose in sent.uses]
    if sent is None or not any(summed for _, summed in uses):
        return []
    single = dict.fromkeys(purpose for purpose, summed in uses if not summed)
    told = ", ".join(dict.fromkeys(purpose for purpose, summed in uses if summed and purpose not in single))
    return [f"secure: only sums over silos were seen of {told or 'no round'}"
            + (f"; each silo's own update of {', '.join(single)}" if single else "")]  # fmt: skip


def _whether_alive(folder: Path) -> str:
    """Return the state with the age of its last message, because a process may outlive its server by half a minute."""
    try:
        if lock_of(folder).exists():
            check_free(folder)
    except RunError:
        with suppress(OSError):
            ago = max(0.0, time.time() - log_of(folder).stat().st_mtime)
            return f"running; its last message is {ago:.0f} s old"
        return "running"
    return "interrupted: repeat the run.sh command to continue"


def _silos(folder: Path, said: list[str]) -> list[str]:
    """Return for each silo its last node, and the last round in which it was aggregated, not counting evaluations."""
    nodes = {found[2]: found[1] for line in said if (found := NODE.match(line))}
    rounds = dict[str, list[int]]()
    if (folder / "ledger.jsonl").exists():
        for sent in read_ledger(folder / "ledger.jsonl").messages:
            if sent.round is not None and not sent.measured:
                rounds.setdefault(sent.silo, []).append(sent.round)
    counted = {
        silo: f"last aggregated in round {max(of)}, in {plural(len(set(of)), 'round')}" for silo, of in rounds.items()
    }
    told = read_ledger(folder / "delivered" / "ledger.jsonl").messages
    late = {each.silo for each in told if each.measured}
    return [
        f"{silo}: {counted.get(silo, 'never aggregated')}"
        f"{'; its model was delivered' if silo in late else ''}{f'; node {nodes[silo]}' if silo in nodes else ''}"
        for silo in sorted({*nodes, *counted, *late})
    ]
