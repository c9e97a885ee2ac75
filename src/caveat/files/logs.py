"""Files that only grow, of which every checkpoint knows how long they were and what they hashed to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from ..core import RunError
from .atomic import append, lines_of_records, write_bytes
from .links import without_following
from .reading import BLOCK
from .schema.record import Record
from .schema.small_files import FileSum


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
