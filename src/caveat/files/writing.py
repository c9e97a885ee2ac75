"""Write files atomically or by appending, never through links, for the owner only if requested, and under locks."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core import RunError
from .reading import BLOCK
from .schema import FileSum, Record, as_json, sealed


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


class AppendLog:
    """An append-only file of lines with a running hash of its content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sum(self) -> FileSum:
        """The size and hash of the file so far."""
        return FileSum(bytes=self.bytes, sha256=self._digest.hexdigest())

    def rewind(self, known: FileSum | None) -> None:
        """Truncate the file to the known bytes. Raise RunError if these bytes are missing or differ."""
        self._read(known)
        if self.path.exists():
            self._cut()

    def recover(self, known: FileSum | None) -> None:
        """Truncate the file as `rewind` does, but keep complete lines that a killed process wrote."""
        self._read(known)
        if not self.path.exists():
            return
        with open(self.path, "rb", opener=without_following) as file:
            file.seek(self.bytes)
            after = file.read()
        whole = after[: after.rfind(b"\n") + 1]
        if b"\0" in after:
            raise RunError(f"{self.path}: zero bytes follow the first {self.bytes} bytes: the file is damaged")
        self._digest.update(whole)
        self.bytes += len(whole)
        self._cut()

    def _read(self, known: FileSum | None) -> None:
        self._digest, self.bytes = hashlib.sha256(), 0
        if known is None:
            return
        if not self.path.is_file():
            raise RunError(f"{self.path} is missing: restore it from a copy")
        with open(self.path, "rb", opener=without_following) as file:
            while block := file.read(min(BLOCK, known.bytes - self.bytes)):
                self._digest.update(block)
                self.bytes += len(block)
        if self.bytes < known.bytes:
            raise RunError(f"{self.path} has {self.bytes} bytes, expected the {known.bytes} of completed rounds")
        if known.sha256 != self._digest.hexdigest():
            raise RunError(f"{self.path}: its first {known.bytes} bytes differ from what was written: it is damaged")

    def _cut(self) -> None:
        try:
            if self.path.stat().st_nlink > 1:  # a hard link in a copy of the folder must not change
                write_bytes(self.path, self.path.read_bytes())
            with open(self.path, "r+b", opener=without_following) as file:
                file.truncate(self.bytes)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error

    def append(self, text: str) -> None:
        """Append complete lines, if any. Raise RunError on failure, or if another process has written to the file."""
        if not text:
            return
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self.bytes:
            raise RunError(
                f"{self.path} has {size} bytes, but this process wrote {self.bytes}: another process has changed it"
            )
        append(self.path, text)
        self._digest.update(text.encode())
        self.bytes += len(text.encode())

    def add(self, records: Iterable[Record]) -> None:
        """Append a line of JSON per record."""
        self.append("".join(json.dumps(as_json(record)) + "\n" for record in records))

    def sync(self) -> None:
        """Sync the file to disk."""
        if self.bytes:
            with open(self.path, "rb", opener=without_following) as file:
                os.fsync(file.fileno())


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
