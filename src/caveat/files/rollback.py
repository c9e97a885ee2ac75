"""Going back: to one of the last rounds of training by command, or to the very last one for more rounds.

The server's checkpoints of the last rounds are kept, and of silos' own states those that belong to them. What is undone
of rows and ledger is moved to the folder `undone` of the run, since it has left the silos all the same. A finished run
keeps the states after its last round of training in `state/trained`.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..core import ConfigurationError, DataError, RunError, check_silo_name
from .checkpoints import DURABLE, NEWEST, ServerStore, SiloStore, forget_kept, kept_place, kept_positions, server_place
from .ledger import read_ledger
from .reading import GROWING, RUN, STATES, check_file, checked, decoded, lines_of, read, record_of, sum_of, sum_of_bytes
from .run_folder import FAILURE
from .schema import Checkpoint, FileSum, KeptState, Message, Rollback, RunState
from .writing import AppendLog, refuse_link, refuse_links, write_bytes, write_record

UNDONE = "undone"
"""The folder of a run that has what is undone, in a folder for each time."""
LEDGER, ROWS = "ledger.jsonl", "rounds.jsonl"
RESULT = ("summary.json", "report.html", "gallery.json", "features.json", "delivered")
"""What a run has once it is finished, beside its model, which the next result takes the place of."""


def kept_rounds(run: Path) -> list[Checkpoint]:
    """The checkpoints after the last rounds of training of the run in a folder, oldest first.

    Raises DataError for one that is damaged.
    """
    newest = record_of(run / "state" / NEWEST, Checkpoint)
    positions = [] if newest is None else [t for t in kept_positions(run / "state") if t <= newest.t]
    return [read(run / "state" / kept_place(t), Checkpoint) for t in positions]


def can_go_back(run: Path) -> bool:
    """Whether there is a round that the run in a folder could go back to."""
    return len(kept_positions(run / "state")) > 1


def roll_back(run: Path, to: int) -> Rollback:
    """Have the run in a folder continue after its round of training `to`, whatever came then.

    A crash on the way leaves what the same call goes on with. The caller holds the lock. Raises ConfigurationError for
    a round that it cannot go back to, DataError or RunError where something is damaged, before anything is changed.
    """
    store = ServerStore(run / "state")
    if (saved := store.load()) is None:
        raise ConfigurationError(f"{run}: no round is counted yet: there is nothing to go back to")
    now, kept = saved.checkpoint, {each.number: each for each in kept_rounds(run)}
    if to not in kept:
        raise ConfigurationError(f"--to {to}: {_there_are(run, sorted(kept))}")
    if now.t == kept[to].t and not (run / "summary.json").exists():
        raise ConfigurationError(f"--to {to}: {run} goes on after round {to} as it is")
    target = kept[to]
    _check(run, target)
    place = run / UNDONE / str(len(now.rollbacks) + 1)
    back = Rollback(to=to, undone=now.number, ledger=_set_aside(run, place, target))
    # What stays as it is while a run goes on, as it is now: more rounds may have been asked for since.
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
    """What left the silos in rounds that are undone, each round as one of its own.

    Raises DataError where what a rollback has set aside is damaged or gone.
    """
    found = list[Message]()
    for number, back in enumerate(run_state.rollbacks, 1):
        path = run / UNDONE / str(number) / LEDGER
        check_file(path, back.ledger)
        apart = -number * 10**9  # no position of the schedule
        found += [each.model_copy(update={"t": apart + (each.t or 0)}) for each in read_ledger(path).messages]
    return found


def _there_are(run: Path, rounds: list[int]) -> str:
    """To which rounds a run can go back, in words."""
    if not rounds:
        return (
            f"{run} keeps no round to go back to: engine.keep_checkpoints says how many are kept, before a run begins"
        )
    return f"{run} can go back to {', '.join(map(str, rounds))}, of its rounds of training"


def _of_round(place: str) -> bool:
    """Whether a file of a run's folder is another one in each round."""
    return place.endswith(GROWING) or place.startswith("state/")


def _check(run: Path, target: Checkpoint) -> None:
    """Raises DataError, StateLost or RunError unless all is there that a checkpoint needs."""
    if target.server != server_place(target.t) or f"state/{target.server}" not in target.files:
        raise DataError(f"{run / 'state' / kept_place(target.t)}: server = {target.server!r}, expected its own state")
    for place, known in target.files.items():
        if _of_round(place):
            check_file(run / place, known, growing=place.endswith(GROWING))
    states = SiloStore(run / "state" / "silos")
    for kept in _states(run, target):
        states.load(kept)


def _states(run: Path, target: Checkpoint) -> list[KeptState]:
    """The state that each silo had kept last, of those that keep no books of their own."""
    found = dict[str, KeptState]()
    lines = _first(run / STATES, target.files.get(STATES)).splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{run / STATES}, line {number}"
        kept = checked(decoded(line, where), KeptState, where)
        check_silo_name(kept.silo, f"{where}: ")
        found[kept.silo] = kept
    return [kept for kept in found.values() if kept.sha256 is not None]


def _set_aside(run: Path, place: Path, target: Checkpoint) -> FileSum:
    """Move what will be undone to a folder of its own; return what the ledger there holds."""
    try:
        for folder in (place.parent, place, place / "result"):
            refuse_link(folder)
            folder.mkdir(exist_ok=True)
        text = _undone_ledger(run, target)
        write_bytes(place / LEDGER, text, lasting=True)
        write_bytes(place / ROWS, _rest(run / ROWS, target.files.get(ROWS)), lasting=True)
        for name in RESULT:
            if (run / name).exists():
                (run / name).replace(place / "result" / name)
    except OSError as error:
        raise RunError(f"cannot write {place}: {error.strerror}") from error
    return sum_of_bytes(text)


def _undone_ledger(run: Path, target: Checkpoint) -> bytes:
    """The lines that are undone, behind those that say of which form messages are."""
    lines = _first(run / LEDGER, target.files.get(LEDGER)).splitlines(keepends=True)
    forms = [line for line in lines if "tensors" in decoded(line, str(run / LEDGER))]
    return b"".join(forms) + _rest(run / LEDGER, target.files.get(LEDGER))


def _first(path: Path, known: FileSum | None) -> bytes:
    """What is known of a file that grows."""
    return path.read_bytes()[: known.bytes] if known else b""


def _rest(path: Path, known: FileSum | None) -> bytes:
    """What was written to it after that, in whole lines."""
    text = path.read_bytes()[known.bytes if known else 0 :] if path.exists() else b""
    return text[: text.rfind(b"\n") + 1]


FOLDER = "trained"
PLACE = f"state/{FOLDER}/{NEWEST}"
"""The checkpoint that is kept, below a run's folder."""


class TrainedStore:
    """`state/trained` of a run's folder: the checkpoint after its last round of training, and all that belongs to it.

    Files of states never change: those that are kept here are the same ones by another name, where a disk can do so.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.state, self.root = run, run / "state", run / "state" / FOLDER

    def keep(self, states: Iterable[KeptState]) -> None:
        """Keep the newest checkpoint and the states that silos have then, in place of what was kept before."""
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
        """What is kept; None if nothing is. Raises DataError for what is damaged of it, RunError for links in it."""
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
        """Have the run continue after its last round of training, whatever came then."""
        checkpoint = read(self.root / NEWEST, Checkpoint)
        self._check_server(checkpoint)
        for kept in self._states(checkpoint):
            _link(self.root / "silos" / _place(kept), self.state / "silos" / _place(kept))
        _link(self.root / checkpoint.server, self.state / checkpoint.server)
        self.free(checkpoint)

    def free(self, checkpoint: Checkpoint) -> None:
        """Make it the newest checkpoint, of a run whose settings may be others from now on."""
        files = {place: known for place, known in checkpoint.files.items() if place != RUN}
        write_record(self.state / NEWEST, checkpoint.model_copy(update={"files": files}), lasting=True)
        (self.state / DURABLE).unlink(missing_ok=True)

    def _check_server(self, checkpoint: Checkpoint) -> None:
        """Raises DataError unless the server's state is a file beside the checkpoint, of a hash that is known."""
        name = checkpoint.server
        if Path(name).name != name or f"state/{name}" not in checkpoint.files:
            raise DataError(f"{self.root / NEWEST}: server = {name!r}, expected the name of a file beside it")

    def _states(self, checkpoint: Checkpoint) -> list[KeptState]:
        """The last state of each silo until then."""
        found: dict[str, KeptState] = {}
        for value, where in lines_of(self.run / STATES):
            kept = checked(value, KeptState, where)
            if kept.t <= checkpoint.t:
                found[kept.silo] = kept
        return [kept for kept in found.values() if kept.sha256 is not None]


def _place(kept: KeptState) -> Path:
    """Where a state is below a folder of states. Raises DataError for a silo's name that leads elsewhere."""
    check_silo_name(kept.silo, f"{STATES}: ")
    return Path(kept.silo, f"{kept.t:06d}.safetensors")


def _link(source: Path, target: Path) -> None:
    """Give a file another name, in place of what has it; or copy it."""
    refuse_link(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    part.replace(target)
    part.unlink(missing_ok=True)  # two names of one file: nothing was replaced
