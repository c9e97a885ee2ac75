"""Writing files: atomically or by appending, never through links, owner-only if asked, and one process at a time."""

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
from .schema import FileSum
from .schema.record import Record, as_json, sealed


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


_PART = re.compile(r"\..+\.(\d+)\.part")
"""The names that files have while they are written."""


Opener = Callable[[str, int], int]
"""Opens a file to be written, and decides who may read it."""


def write_bytes(path: Path, data: bytes, lasting: bool = False, opener: Opener = without_following) -> None:
    """Write a file so that it is there whole or not at all, and if it is `lasting`, also after the power was cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _forget_parts_of(path)
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
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def sync(path: Path) -> None:
    """Wait until a file, or which files a folder has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Add to a file; what a failure leaves of `text` is for the caller to cut off again."""
    try:
        with open(path, "ab", opener=without_following) as file:
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; what was saved before is kept") from error


def forget_parts(folder: Path) -> None:
    """Delete what processes that were killed have left of files in a folder, at any depth."""
    for place, _, names in os.walk(folder):
        for name in names:
            if _PART.fullmatch(name):
                Path(place, name).unlink(missing_ok=True)


def _forget_parts_of(path: Path) -> None:
    """Delete what this process, or one that is no more, has left of a file."""
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(f".{path.name}.")]
    for name in names:
        if (found := _PART.fullmatch(name)) and not _alive(int(found[1])):
            path.with_name(name).unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    """Whether there is another process of this number."""
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def write_json(path: Path, value: Mapping[str, Any], lasting: bool = False, opener: Opener = without_following) -> None:
    """Write JSON whole or not at all, with all digits of floats; NaN and infinity are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode(), lasting, opener)


def write_record(path: Path, record: Record, lasting: bool = False, opener: Opener = without_following) -> None:
    """What a file holds of a record, as `write_json` writes it, with a checksum where its kind has one."""
    value = as_json(record)
    write_json(path, sealed(value) if record.SEALED else value, lasting, opener)


def lines_of_records(records: Iterable[Record]) -> str:
    """A line of JSON per record."""
    return "".join(json.dumps(as_json(record)) + "\n" for record in records)


def _drop(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # as when the folder is not there any more: the first error is the one to tell
        return


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


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet takes for a formula, or drops before it looks for one."""


def as_text(cell: str) -> str:
    """A cell that a spreadsheet shows and does not run: with an apostrophe before what would be a formula.

    A plain number such as -1 stays as it is; a carriage return becomes a space.
    """
    safe = cell if not cell.startswith(FORMULA) or _plain(cell) else f"'{cell}"
    return safe.replace("\r", " ")  # Python's csv before 3.13 does not quote it, and readers end the line there


def _plain(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell == cell.strip()


class AppendLog:
    """Appends lines to a file, and hashes what it holds as it grows: the hash of a line is of all before it too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sum(self) -> FileSum:
        """What the file holds so far."""
        return FileSum(bytes=self.bytes, sha256=self._digest.hexdigest())

    def rewind(self, known: FileSum | None) -> None:
        """Drop what was written after the bytes that are known. Raises RunError if those are missing or differ."""
        self._read(known)
        if self.path.exists():
            self._cut()

    def recover(self, known: FileSum | None) -> None:
        """As `rewind`, but whole lines that a process wrote before it was killed stay."""
        self._read(known)
        if not self.path.exists():
            return
        with open(self.path, "rb", opener=without_following) as file:
            file.seek(self.bytes)
            after = file.read()
        whole = after[: after.rfind(b"\n") + 1]
        if b"\0" in after:
            raise RunError(f"{self.path}: there are bytes of 0 after the first {self.bytes}: it is damaged")
        self._digest.update(whole)
        self.bytes += len(whole)
        self._cut()

    def _read(self, known: FileSum | None) -> None:
        """Hash what is known."""
        self._digest, self.bytes = hashlib.sha256(), 0
        if known is None:
            return
        if not self.path.is_file():
            raise RunError(f"{self.path} is missing: put it back from a copy")
        with open(self.path, "rb", opener=without_following) as file:
            while block := file.read(min(BLOCK, known.bytes - self.bytes)):
                self._digest.update(block)
                self.bytes += len(block)
        if self.bytes < known.bytes:
            raise RunError(f"{self.path}: {self.bytes} bytes, expected the {known.bytes} of completed rounds")
        if known.sha256 != self._digest.hexdigest():
            raise RunError(f"{self.path}: its first {known.bytes} bytes are not what was written: it is damaged")

    def _cut(self) -> None:
        """Drop what is not hashed."""
        try:
            if self.path.stat().st_nlink > 1:  # a copy of the folder shares the file, and is to stay as it is
                write_bytes(self.path, self.path.read_bytes())
            with open(self.path, "r+b", opener=without_following) as file:
                file.truncate(self.bytes)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error

    def append(self, text: str) -> None:
        """Add whole lines, if any. Raises RunError if they cannot be written, or where somebody else has written."""
        if not text:
            return
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self.bytes:
            raise RunError(f"{self.path}: {size} bytes, but {self.bytes} were written: somebody else has changed it")
        append(self.path, text)
        self._digest.update(text.encode())
        self.bytes += len(text.encode())

    def add(self, records: Iterable[Record]) -> None:
        """Add a line of JSON per record."""
        self.append(lines_of_records(records))

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self.bytes:
            with open(self.path, "rb", opener=without_following) as file:
                os.fsync(file.fileno())


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
