"""An append-only file with a running hash, which can be truncated to a known state."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..core import RunError
from .reading import BLOCK
from .schema import FileSum, Record, as_json
from .writing import append, without_following, write_bytes


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
