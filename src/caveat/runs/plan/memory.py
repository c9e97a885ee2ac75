"""What a rehearsal says of memory and disk: this process, a worker, and what silos keep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...core import State
from ...core.tensors import size
from ...engines.processes.pool import EmbeddedEngine


@dataclass(frozen=True)
class Memory:
    """Bytes, as they were when all rounds had been rehearsed."""

    parent: int | None
    """Of this process, without what it shares with its workers; None where the system does not tell."""
    worker: int | None
    """Of a worker, beyond what it has of its parent."""
    server: int
    """The server's state."""
    kept: int
    """Of the state of one silo, in a file."""


def memory_of(engine: EmbeddedEngine, folder: Path, server: State) -> Memory:
    """What the processes of an engine take, and the files of its silos' states."""
    workers = [private(worker.process) for worker in engine.workers]
    files = list((folder / "state" / "silos").glob("*/*.safetensors"))
    newest = {file.parent: file.stat().st_size for file in sorted(files)}
    return Memory(
        parent=resident("self"),
        worker=max((each for each in workers if each is not None), default=None),
        server=size(server),
        kept=round(sum(newest.values()) / len(newest)) if newest else 0,
    )


def resident(process: str) -> int | None:
    """Bytes of a process in memory, but for what it shares with others; None where nobody says."""
    try:
        fields = _fields(Path("/proc") / process / "status")
    except OSError:
        return None
    return (fields["RssAnon"] + fields["RssFile"]) * 1024 if "RssAnon" in fields else None


def private(process: int) -> int | None:
    """Bytes that a process has for itself alone."""
    try:
        fields = _fields(Path("/proc") / str(process) / "smaps_rollup")
    except OSError:
        return None
    return (fields["Private_Clean"] + fields["Private_Dirty"]) * 1024


def _fields(path: Path) -> dict[str, int]:
    """The numbers in kB of a file such as /proc/self/status, by name."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}
