"""Folders that one process holds at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone. Raises RunError if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            # A record lock: it is this process's alone, and workers that are about to end do not hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise RunError(f"{folder.parent} is being run by another process") from error
        yield
