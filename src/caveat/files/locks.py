"""Lock files, so that one process at a time works in a folder."""

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import RunError
from .writing import refuse_link, refuse_links, without_following

LOCKED = ("state", "runs")
"""Folders of a run, and of a comparison or an audit, in which their locks lie."""
PAUSE = 0.2
"""Seconds between two tries for a lock that another process holds."""
_held: set[Path] = set()
"""The locks of this process, which the system would give it a second time."""
_mutex = threading.Lock()


@contextmanager
def held(lock: Path, busy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which is made if it is not there, and so is its folder.

    Raises RunError saying `busy` if somebody else still holds it after `wait` seconds, or if it is a link or cannot be
    made.
    """
    refuse_link(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {lock.parent}: {error.strerror}") from error
    lock, until = lock.resolve(), time.monotonic() + wait
    while not _taken(lock):
        _pause(busy, until)
    try:
        with open(lock, "ab", opener=without_following) as file:
            while True:
                try:
                    # A record lock: it is this process's alone, and workers that are about to end do not hold it.
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
    """Hold a folder of a run or a comparison, by a file in the folder `folder` of it.

    Raises RunError if somebody else holds it, and for links in it, before anything is written.
    """
    refuse_links(folder.parent, unread={"silos"})  # which may be a million, and are looked at one by one
    with held(folder / "lock", f"{folder.parent} is being run by another process"):
        yield


def nothing_begun(folder: Path) -> bool:
    """Whether a folder is not there, or has no more than a killed process leaves that wrote no file yet: half a file,
    or a folder with no more than its lock.
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(_left_behind(path) for path in folder.iterdir())


def _left_behind(path: Path) -> bool:
    if path.is_dir() and not path.is_symlink():
        return path.name in LOCKED and all(each.name == "lock" for each in path.iterdir())
    return path.suffix == ".part"
