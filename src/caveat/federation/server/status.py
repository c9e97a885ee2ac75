"""The status of a run at its server, from its messages, ledgers and lock."""

import re
import time
from contextlib import suppress
from pathlib import Path

from ...core import ConfigurationError, RunError
from ...core.text import plural
from ...files import read_ledger, read_sent
from ...files.schema import NO_PART
from .log import FAILED, check_free, lock_of, log_of

LAST = 12
"""Number of last messages to show."""
ROUND = re.compile(r" round +(\d+)/(\d+) ")
"""The pattern of the message after a round is aggregated."""
NODE = re.compile(r"^\S+ \S+ node (\d+) is silo (.+)$")
"""The pattern of the message when a silo connects, or uses another node."""
LATE = re.compile(rf" (silo \S+ {NO_PART}, .*)$")
"""The pattern of the message for a silo that joins after training."""
BACK = re.compile(r" was rolled back to round (\d+):")
"""The pattern of the message after a run was rolled back."""


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
    """Return a line on the messages of which the server saw only sums; none without secure aggregation."""
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
