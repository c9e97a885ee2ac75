"""The states after a run's last round of training, kept beside later ones so that more rounds can go on from there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..core import DataError, RunError, check_silo_name
from .checkpoints import DURABLE, NEWEST
from .reading import GROWING, STATES, check_file, checked, lines_of, read, record_of, sum_of
from .schema.small_files import Checkpoint, KeptState
from .writing import refuse_link, refuse_links, write_record

FOLDER = "trained"
PLACE = f"state/{FOLDER}/{NEWEST}"
"""The checkpoint that is kept, below a run's folder."""
SETTINGS = "settings.json"


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
        files = {place: known for place, known in checkpoint.files.items() if place != SETTINGS}
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
