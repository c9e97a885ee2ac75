"""Locks of folders: a run, a comparison or an audit is executed by one process at a time."""

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import RunError
from .writing import refuse_link, refuse_links, without_following

LOCKED = ("state", "runs")
"""The folders that contain locks: the first in the folder of a run, the second in that of a comparison or an audit."""
PAUSE = 0.2
"""Seconds between two attempts to acquire a lock."""
_held: set[Path] = set()
"""The locks that this process holds. The operating system would grant them to the process a second time."""
_mutex = threading.Lock()


@contextmanager
def held(lock: Path, busy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which is created with its folder if it is missing. Raises RunError with the message `busy` if
    the lock is still held elsewhere after `wait` seconds. Raises RunError if it is a link or cannot be created."""
    refuse_link(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create the folder {lock.parent}: {error.strerror}") from error
    lock, until = lock.resolve(), time.monotonic() + wait
    while not _taken(lock):
        _pause(busy, until)
    try:
        with open(lock, "ab", opener=without_following) as file:
            while True:
                try:
                    # A record lock belongs only to this process, so workers that are still ending do not hold it.
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError):
                    _pause(busy, until)
            yield
    finally:
        _held.remove(lock)


def _taken(lock: Path) -> bool:
    with _mutex:
        free = lock not in _held
        _held.add(lock)
        return free


def _pause(busy: str, until: float) -> None:
    if time.monotonic() >= until:
        raise RunError(busy)
    time.sleep(PAUSE)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run or a comparison by a file in its subfolder `folder`. Raises RunError if another process holds the
    lock, and for links in the folder of the run or comparison, before anything is written."""
    refuse_links(folder.parent, unread={"silos"})  # may contain a million files, which are checked when they are used
    with held(folder / "lock", f"{folder.parent} is being run by another process"):
        yield


def nothing_begun(folder: Path) -> bool:
    """Return whether a folder is missing, or contains only partial files and locks of a killed process."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(_left_behind(path) for path in folder.iterdir())


def _left_behind(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return path.name in LOCKED and all(each.name == "lock" for each in path.iterdir())
    return path.suffix == ".part"
