"""Links in a folder that caveat writes to: they are never followed, since they may lead to files of somebody else."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ..core import RunError


def refuse_links(folder: Path, unread: Collection[str] = ()) -> None:
    """Raises RunError for a link in a folder, at any depth; what lies in folders called `unread` is left to others.

    The folder itself may be reached through a link.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_link(Path(place, name))
        folders[:] = [name for name in folders if name not in unread]


def refuse_link(path: Path) -> None:
    """Raises RunError if the path is a link."""
    if path.is_symlink():
        raise RunError(
            f"{path} is a link to {str(path.readlink())!r}: caveat writes and deletes nothing through links in a run's "
            "folder; put what it names in its place"
        )


def without_following(path: str, flags: int) -> int:
    """An `opener` for `open`, which fails on a link, and waits for nobody where there is a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def privately(path: str, flags: int) -> int:
    """An `opener` like `without_following`, of files that nobody but their owner may read or write."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
