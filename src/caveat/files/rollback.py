"""Roll back a run to a recent training round, or to its last training round to train for more rounds.

The server's checkpoints of the last training rounds are kept, with the states of the silos that belong to the
checkpoints. Undone rows and ledger lines are moved to the folder `undone` of the run, because their messages have left
the silos. A finished run keeps the states after its last training round in `state/trained`.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..core import ConfigurationError, DataError, RunError, check_silo_name
from .append_log import AppendLog
from .checkpoints import DURABLE, NEWEST, ServerStore, SiloStore, forget_kept, kept_place, kept_positions, server_place
from .reading import GROWING, RUN, STATES, check_file, checked, decoded, lines_of, read, record_of, sum_of, sum_of_bytes
from .run_folder import FAILURE
from .schema import Checkpoint, FileSum, KeptState, Message, Rollback, RunState
from .sent_messages import read_ledger
from .writing import refuse_link, refuse_links, write_bytes, write_record

UNDONE = "undone"
"""The folder of a run with undone lines, in one subfolder per rollback."""
LEDGER, ROWS = "ledger.jsonl", "rounds.jsonl"
RESULT = ("summary.json", "report.html", "gallery.json", "features.json", "delivered")
"""Results of a finished run, which a rollback moves away; the next model replaces the model."""


def kept_rounds(run: Path) -> list[Checkpoint]:
    """Return the checkpoints after a run's last training rounds, oldest first. Raise DataError if one is damaged."""
    newest = record_of(run / "state" / NEWEST, Checkpoint)
    positions = [] if newest is None else [t for t in kept_positions(run / "state") if t <= newest.t]
    return [read(run / "state" / kept_place(t), Checkpoint) for t in positions]


def can_go_back(run: Path) -> bool:
    """Return whether a run can be rolled back."""
    return len(kept_positions(run / "state")) > 1


def roll_back(run: Path, to: int) -> Rollback:
    """Roll a run back, so that it continues after training round `to`.

    If the rollback is interrupted, the same call completes it. The caller must hold the lock of the run. Raises
    ConfigurationError for a round that is not kept, DataError or RunError for damaged files, before anything is
    changed.
    """
    store = ServerStore(run / "state")
    if (saved := store.load()) is None:
        raise ConfigurationError(f"{run}: no round is complete yet, so there is nothing to roll back to")
    now, kept = saved.checkpoint, {each.number: each for each in kept_rounds(run)}
    if to not in kept:
        raise ConfigurationError(f"--to {to}: {_there_are(run, sorted(kept))}")
    if now.t == kept[to].t and not (run / "summary.json").exists():
        raise ConfigurationError(f"--to {to}: {run} already continues after round {to}")
    target = kept[to]
    _check(run, target)
    place = run / UNDONE / str(len(now.rollbacks) + 1)
    back = Rollback(to=to, undone=now.number, ledger=_set_aside(run, place, target))
    # Files that do not change with rounds keep their current hashes, because more rounds may have been requested.
    fixed = {name: known for name, known in now.files.items() if not _of_round(name)}
    files = fixed | {name: known for name, known in target.files.items() if _of_round(name)}
    new = target.model_copy(update={"files": files, "rollbacks": [*now.rollbacks, back]})
    write_record(run / "state" / NEWEST, new, lasting=True)
    (run / "state" / DURABLE).unlink(missing_ok=True)
    (run / FAILURE).unlink(missing_ok=True)
    forget_kept(run / "state", target.t)
    for name in (LEDGER, ROWS, STATES):
        AppendLog(run / name).rewind(target.files.get(name))
    return back


def undone_messages(run: Path, run_state: RunState) -> list[Message]:
    """Return the messages of undone rounds, with different numbers `t` for each rollback. Raises DataError if the
    undone lines are damaged or missing."""
    found = list[Message]()
    for number, back in enumerate(run_state.rollbacks, 1):
        path = run / UNDONE / str(number) / LEDGER
        check_file(path, back.ledger)
        apart = -number * 10**9  # never a position in the schedule
        found += [each.model_copy(update={"t": apart + (each.t or 0)}) for each in read_ledger(path).messages]
    return found


def _there_are(run: Path, rounds: list[int]) -> str:
    if not rounds:
        return f"{run} keeps no round to roll back to; set engine.keep_checkpoints before you start a run"
    return f"{run} can be rolled back to the training rounds {', '.join(map(str, rounds))}"


def _of_round(place: str) -> bool:
    return place.endswith(GROWING) or place.startswith("state/")


def _check(run: Path, target: Checkpoint) -> None:
    """Raise DataError, StateLost or RunError unless all files of a checkpoint are intact."""
    if target.server != server_place(target.t) or f"state/{target.server}" not in target.files:
        raise DataError(
            f"{run / 'state' / kept_place(target.t)}: server = {target.server!r}, expected {server_place(target.t)!r}, "
            "with a hash"
        )
    for place, known in target.files.items():
        if _of_round(place):
            check_file(run / place, known, growing=place.endswith(GROWING))
    states = SiloStore(run / "state" / "silos")
    for kept in _states(run, target):
        states.load(kept)


def _states(run: Path, target: Checkpoint) -> list[KeptState]:
    found = dict[str, KeptState]()
    lines = _first(run / STATES, target.files.get(STATES)).splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{run / STATES}, line {number}"
        kept = checked(decoded(line, where), KeptState, where)
        check_silo_name(kept.silo, f"{where}: ")
        found[kept.silo] = kept
    return [kept for kept in found.values() if kept.sha256 is not None]


def _set_aside(run: Path, place: Path, target: Checkpoint) -> FileSum:
    try:
        for folder in (place.parent, place, place / "result"):
            refuse_link(folder)
            folder.mkdir(exist_ok=True)
        lines = _first(run / LEDGER, target.files.get(LEDGER)).splitlines(keepends=True)
        forms = [line for line in lines if "tensors" in decoded(line, str(run / LEDGER))]
        text = b"".join(forms) + _rest(run / LEDGER, target.files.get(LEDGER))
        write_bytes(place / LEDGER, text, lasting=True)
        write_bytes(place / ROWS, _rest(run / ROWS, target.files.get(ROWS)), lasting=True)
        for name in RESULT:
            if (run / name).exists():
                (run / name).replace(place / "result" / name)
    except OSError as error:
        raise RunError(f"cannot write {place}: {error.strerror}") from error
    return sum_of_bytes(text)


def _first(path: Path, known: FileSum | None) -> bytes:
    return path.read_bytes()[: known.bytes] if known else b""


def _rest(path: Path, known: FileSum | None) -> bytes:
    text = path.read_bytes()[known.bytes if known else 0 :] if path.exists() else b""
    return text[: text.rfind(b"\n") + 1]


FOLDER = "trained"
PLACE = f"state/{FOLDER}/{NEWEST}"
"""The path of the checkpoint after the last training round in a run's folder."""


class TrainedStore:
    """`state/trained` of a run's folder: the checkpoint after its last training round, and the states of silos. State
    files never change, so they are hard links if the disk supports links."""

    def __init__(self, run: Path) -> None:
        self.run, self.state, self.root = run, run / "state", run / "state" / FOLDER

    def keep(self, states: Iterable[KeptState]) -> None:
        """Store the newest checkpoint and the states of silos, which replace the stored checkpoint and states."""
        refuse_link(self.root)
        if self.root.exists():
            refuse_links(self.root)
            (self.root / NEWEST).unlink(missing_ok=True)
            shutil.rmtree(self.root)
        try:
            checkpoint = read(self.state / NEWEST, Checkpoint)
            _link(self.state / checkpoint.server, self.root / checkpoint.server)
            for kept in states:
                if kept.sha256 is not None:
                    _link(self.state / "silos" / _place(kept), self.root / "silos" / _place(kept))
        except OSError as error:
            raise RunError(f"cannot write {self.root}: {error.strerror}") from error
        write_record(self.root / NEWEST, checkpoint)

    def load(self) -> Checkpoint | None:
        """Return the stored checkpoint; None if there is none. Raise DataError if a file is damaged, RunError for
        links."""
        refuse_link(self.root)
        refuse_links(self.root)
        checkpoint = record_of(self.root / NEWEST, Checkpoint)
        if checkpoint is None:
            return None
        self._check_server(checkpoint)
        for place, known in checkpoint.files.items():
            if place.endswith(GROWING):
                check_file(self.run / place, known, growing=True)
        check_file(self.root / checkpoint.server, checkpoint.files[f"state/{checkpoint.server}"])
        for kept in self._states(checkpoint):
            path = self.root / "silos" / _place(kept)
            check_file(path, sum_of(path).model_copy(update={"sha256": kept.sha256}))
        return checkpoint

    def restore(self) -> None:
        """Restore the run to the end of its last training round."""
        checkpoint = read(self.root / NEWEST, Checkpoint)
        self._check_server(checkpoint)
        for kept in self._states(checkpoint):
            _link(self.root / "silos" / _place(kept), self.state / "silos" / _place(kept))
        _link(self.root / checkpoint.server, self.state / checkpoint.server)
        self.free(checkpoint)

    def free(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint the newest one, without the hash of the run's settings, so that they may change."""
        files = {place: known for place, known in checkpoint.files.items() if place != RUN}
        write_record(self.state / NEWEST, checkpoint.model_copy(update={"files": files}), lasting=True)
        (self.state / DURABLE).unlink(missing_ok=True)

    def _check_server(self, checkpoint: Checkpoint) -> None:
        """Raise DataError unless the server's state is a file next to the checkpoint with a known hash."""
        name = checkpoint.server
        if Path(name).name != name or f"state/{name}" not in checkpoint.files:
            raise DataError(f"{self.root / NEWEST}: server = {name!r}, expected the name of a file in this folder")

    def _states(self, checkpoint: Checkpoint) -> list[KeptState]:
        found: dict[str, KeptState] = {}
        for value, where in lines_of(self.run / STATES):
            kept = checked(value, KeptState, where)
            if kept.t <= checkpoint.t:
                found[kept.silo] = kept
        return [kept for kept in found.values() if kept.sha256 is not None]


def _place(kept: KeptState) -> Path:
    """Return the path of a state in a folder of states. Raise DataError for an invalid silo name."""
    check_silo_name(kept.silo, f"{STATES}: ")
    return Path(kept.silo, f"{kept.t:06d}.safetensors")


def _link(source: Path, target: Path) -> None:
    refuse_link(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    part.replace(target)
    part.unlink(missing_ok=True)  # it still exists if it and the target were links to the same file
