"""Files that nobody but their owner can read, whoever writes them: this library, torch or Flower."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

OTHERS = 0o077
"""The bits of a mode that let anybody but the owner do something."""


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Have this process make files of mode 600 and folders of mode 700 at most, in all its threads."""
    before = os.umask(OTHERS)
    # Never more than was allowed before.
    os.umask(before | OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(path: Path) -> None:
    """Take from everybody but the owner what they may do with a file or folder; another user's stays as it is."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & 0o7777 & ~OTHERS)
