"""What the server of a federation says about a run, in a file beside the run's folder, and a look at it.

The folder itself is not there before silos have joined, and the wait for them is most of what an operator wants to see.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ...core import ConfigurationError, RunError
from ...core.text import escaped, plural
from ...files.ledger import read_ledger
from ...files.schema import NO_PART
from ...files.writing import held, privately, refuse_link
from ...runs.progress import Plain

LAST = 12
"""Lines of what was said last that are shown."""
FAILED = "the run has failed: "
"""How a line begins that says why a run has ended too early."""

ROUND = re.compile(r" round +(\d+)/(\d+) ")
"""What is said once a round is counted."""
NODE = re.compile(r"^\S+ \S+ node (\d+) is silo (.+)$")
"""What is said once a silo has greeted, or speaks by another node."""
LATE = re.compile(rf" (silo \S+ {NO_PART}, .*)$")
"""What is said of a silo that comes after training."""
BACK = re.compile(r" went back to round (\d+):")
"""What is said once a run went back to an earlier one."""


def log_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.log")


class Dated(Plain):
    """One line per round and note, on standard error, and with the time of day in a file."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def _print(self, line: str) -> None:
        super()._print(line)
        _dated(line, self._file)


def _dated(line: str, file: TextIO) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), escaped(line), file=file, flush=True)


def lock_of(folder: Path) -> Path:
    """The lock of a run's folder, beside it, since the folder need not be there yet."""
    return folder.with_name(f".{folder.name}.lock")


def check_free(folder: Path) -> None:
    """Raises RunError where another process carries out the run in a folder."""
    with held(lock_of(folder), f"{folder} is being run by another process"):
        pass


@contextmanager
def logged(folder: Path) -> Iterator[Dated]:
    """Says what a run's server says in the file beside its folder, too, which nobody else can read; and how it ends."""
    path = log_of(folder)
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", opener=privately) as file:
        progress = Dated(file)
        try:
            yield progress
        except Exception as error:
            first, *more = str(error).splitlines() or [type(error).__name__]
            for line in (*more, f"{FAILED}{first}"):  # by the last line it is known how a run ended
                progress.note(line)
            raise
        progress.note("the run is complete")


def say(folder: Path, text: str) -> None:
    """Add a line to what a run's server says, of what was done to its folder by command."""
    path = log_of(folder)
    refuse_link(path)
    with open(path, "a", encoding="utf-8", opener=privately) as file:
        _dated(text, file)


def status_of(folder: Path) -> list[str]:
    """Lines about a run at its server: how far it is, when each silo was counted last, what was said last.

    Raises ConfigurationError where nothing is known of such a run.
    """
    path, said = log_of(folder), list[str]()
    with suppress(OSError):
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not said and not folder.is_dir():
        raise ConfigurationError(f"{folder}: no run, and {path.name} is not beside it; expected a run's folder")
    return [*_how_far(folder, said), *_silos(folder, said), *_late(said), *(["", *said[-LAST:]] if said else [])]


def _how_far(folder: Path, said: list[str]) -> list[str]:
    if (folder / "summary.json").exists():
        return [f"{folder}: complete"]
    last = planned = ""
    for line in said:
        if counted := ROUND.search(line):
            last, planned = counted.groups()
        elif back := BACK.search(line):
            last = back[1]
    rounds = f"{last} of up to {planned} rounds" if planned else "no round counted yet"
    _, failed, why = said[-1].partition(FAILED) if said else ("", "", "")
    state = f"failed, and goes on if it is started again: {why}" if failed else _whether_alive(folder)
    return [f"{folder}: {rounds}; {state}"]


def _whether_alive(folder: Path) -> str:
    """A server's process may outlive the server that started it by half a minute: how old its last word is, too."""
    try:
        if lock_of(folder).exists():
            check_free(folder)
    except RunError:
        with suppress(OSError):
            ago = max(0.0, time.time() - log_of(folder).stat().st_mtime)
            return f"under way, and has said something last {ago:.0f} s ago"
        return "under way"
    return "interrupted: the same run.sh goes on with it"


def _silos(folder: Path, said: list[str]) -> list[str]:
    """Of each silo the node that it spoke by last, and the last round that it was counted in, measurements apart."""
    nodes = {found[2]: found[1] for line in said if (found := NODE.match(line))}
    rounds = dict[str, list[int]]()
    if (folder / "ledger.jsonl").exists():
        for sent in read_ledger(folder / "ledger.jsonl").messages:
            if sent.round is not None and not sent.measured:
                rounds.setdefault(sent.silo, []).append(sent.round)
    counted = {
        silo: f"counted last in round {max(of)}, in {plural(len(set(of)), 'round')}" for silo, of in rounds.items()
    }
    told = read_ledger(folder / "delivered" / "ledger.jsonl").messages
    late = {each.silo for each in told if each.measured}
    return [
        f"{silo}: {counted.get(silo, 'counted in no round')}"
        f"{'; its model was delivered' if silo in late else ''}{f'; node {nodes[silo]}' if silo in nodes else ''}"
        for silo in sorted({*nodes, *counted, *late})
    ]


def _late(said: list[str]) -> list[str]:
    """The silos that came after training, and what to do about it."""
    return sorted({found[1] for line in said if (found := LATE.search(line))})
