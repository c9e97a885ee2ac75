"""Write files atomically or by appending, never through links, and for the owner only if requested."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core import RunError
from .schema import Record, as_json, sealed


def refuse_links(folder: Path, unread: Collection[str] = ()) -> None:
    """Raise RunError if a folder contains a link, at any depth. The content of folders whose names are in `unread` is
    not checked. The path of the folder itself may contain links."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_link(Path(place, name))
        folders[:] = [name for name in folders if name not in unread]


def refuse_link(path: Path) -> None:
    """Raise RunError if the path is a link."""
    if path.is_symlink():
        raise RunError(
            f"{path} is a link to {str(path.readlink())!r}, but caveat does not write or delete files through links in "
            "a run's folder; replace the link by its target"
        )


def without_following(path: str, flags: int) -> int:
    """Open a file as an `opener` of `open`, but fail for a link, and do not block on a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def privately(path: str, flags: int) -> int:
    """Open a file as `without_following` does, but create it such that only its owner may read or write it."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


_PART = re.compile(r"\..+\.(\d+)\.part")
"""The names of files while they are being written."""


Opener = Callable[[str, int], int]
"""A function that opens a file for writing and sets its permissions."""


def write_bytes(path: Path, data: bytes, lasting: bool = False, opener: Opener = without_following) -> None:
    """Write a file atomically. If `lasting`, sync it to disk, so that it survives a power failure."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(f".{path.name}.")]
        for name in names:
            if (found := _PART.fullmatch(name)) and not _alive(int(found[1])):
                path.with_name(name).unlink(missing_ok=True)
        with open(part, "xb", opener=opener) as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if lasting:
            sync(path.parent)
    except OSError as error:
        _drop(part)
        raise RunError(f"cannot write {path}: {error.strerror}; earlier files are kept") from error


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Append a text to a file. After a failure, the caller must remove a partially written text."""
    try:
        with open(path, "ab", opener=without_following) as file:
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; earlier files are kept") from error


def forget_parts(folder: Path) -> None:
    """Delete partial files of killed processes in a folder, at any depth."""
    for place, _, names in os.walk(folder):
        for name in names:
            if _PART.fullmatch(name):
                Path(place, name).unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # the process of another user
        return True
    return True


def write_json(path: Path, value: Mapping[str, Any], lasting: bool = False, opener: Opener = without_following) -> None:
    """Write JSON atomically, with all digits of floats. Raises ValueError for NaN and infinity."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), lasting, opener)


def write_record(path: Path, record: Record, lasting: bool = False, opener: Opener = without_following) -> None:
    """Write a record as JSON, with a checksum if its kind has one."""
    value = as_json(record)
    write_json(path, sealed(value) if record.SEALED else value, lasting, opener)


def _drop(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # for example, if the folder was deleted; the first error is more informative
        return


OTHERS = 0o077
"""The permission bits of group and others."""


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Limit new files to mode 600 and new folders to mode 700, in all threads of this process."""
    before = os.umask(OTHERS)
    os.umask(before | OTHERS)  # never more permissive than before
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(path: Path) -> None:
    """Remove the permissions of group and others from a file or folder, unless another user owns it."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        with contextlib.suppress(PermissionError):
            path.chmod(mode & 0o7777 & ~OTHERS)


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Characters at the start of a cell that begin a formula in a spreadsheet, or that a spreadsheet skips before one."""


def as_text(cell: str) -> str:
    """Return a cell with an apostrophe before a formula, so that a spreadsheet does not evaluate it. Plain numbers such
    as -1 do not change, and carriage returns become spaces."""
    safe = cell if not cell.startswith(FORMULA) or _plain(cell) else f"'{cell}"
    return safe.replace("\r", " ")  # Python's csv before 3.13 does not quote a carriage return


def _plain(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell == cell.strip()
