"""The server's messages about a run, in a file next to the run's folder, and the lock of that folder.

The file is not in the folder, which does not exist until silos have joined: messages about this wait are the most
useful ones.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ...core.text import escaped
from ...files import held, privately, refuse_link
from ...runs.progress import Plain

FAILED = "the run has failed: "
"""Beginning of the line with the error of a failed run."""


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
    """Also write the server's messages and the outcome to the private file next to the run's folder."""
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
    """Add a line to the server's messages about a command that changed the run's folder."""
    path = log_of(folder)
    refuse_link(path)
    with open(path, "a", encoding="utf-8", opener=privately) as file:
        _dated(text, file)
