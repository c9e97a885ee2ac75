"""Crash points: every operation on files below a folder, as the system sees it, is counted and can be struck.

What is patched is Python's own way to the system (`io.open`, `os.replace` and the like), not what caveat calls, so
that files that are written some day count by themselves. To be installed in a child, whose patches end with it.
"""

from __future__ import annotations

import builtins
import errno
import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

SPACE = {"write", "open", "mkdir", "link", "symlink", "sendfile"}
"""Operations that a full disk refuses."""
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
BY_PATH = ("unlink", "remove", "rmdir", "mkdir", "truncate")
BY_TWO_PATHS = ("replace", "rename", "link", "symlink")
BY_FILE = ("fsync", "fdatasync", "ftruncate", "posix_fallocate")

Operation = Callable[[], Any]
Half = Callable[[], Any]


class Points:
    """Counts operations below a folder, in this process and in those that it forks; numbers start from 1."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.counter = multiprocessing.get_context("fork").Value("q", 0)

    @property
    def count(self) -> int:
        return int(self.counter.value)

    def strike(self, number: int, name: str, path: str, operation: Operation, half: Half | None) -> Any:
        """What becomes of an operation; `half` does half of a write."""
        return operation()

    def carry_out(self, name: str, path: str, operation: Operation, half: Half | None = None) -> Any:
        if not (path == self.root or path.startswith(self.root + os.sep)):
            return operation()
        with self.counter.get_lock():
            self.counter.value += 1
            number = int(self.counter.value)
        return self.strike(number, name, path, operation, half)

    def install(self) -> None:
        """Patch the ways to the system, for good."""
        builtins.open = io.open = _opener(self, io.open)  # type: ignore[assignment]
        for name in BY_PATH:
            setattr(os, name, _by_path(self, name, getattr(os, name)))
        for name in BY_TWO_PATHS:
            setattr(os, name, _by_two_paths(self, name, getattr(os, name)))
        for name in BY_FILE:
            if hasattr(os, name):
                setattr(os, name, _by_file(self, name, getattr(os, name)))
        os.write = _writer(self, os.write)
        os.open = _low_opener(self, os.open)  # type: ignore[assignment]
        if hasattr(os, "sendfile"):
            os.sendfile = _sender(self, os.sendfile)


class Kill(Points):
    """Kills the whole process group before the n-th operation."""

    def __init__(self, root: str, number: int) -> None:
        super().__init__(root)
        self.number = number

    def strike(self, number: int, name: str, path: str, operation: Operation, half: Half | None) -> Any:
        if number == self.number:
            os.killpg(0, signal.SIGKILL)
        return operation()


class Torn(Kill):
    """Kills after half of the n-th operation, where that is a write, and right after it otherwise."""

    def strike(self, number: int, name: str, path: str, operation: Operation, half: Half | None) -> Any:
        if number == self.number:
            (half or operation)()
            os.killpg(0, signal.SIGKILL)
        return operation()


class Full(Kill):
    """The disk is full from the n-th operation on."""

    def strike(self, number: int, name: str, path: str, operation: Operation, half: Half | None) -> Any:
        if number < self.number or (number > self.number and name not in SPACE):
            return operation()
        if number == self.number and half is not None:
            return half()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


KINDS: dict[str, type[Kill]] = {"kill": Kill, "torn": Torn, "full": Full}


class Snapshots(Points):
    """Calls back before some operations: with what is on the disk then, a process that is killed there leaves off."""

    def __init__(self, root: str, numbers: set[int], keep: Callable[[int], None]) -> None:
        super().__init__(root)
        self.numbers, self.keep, self.keeping = numbers, keep, False

    def carry_out(self, name: str, path: str, operation: Operation, half: Half | None = None) -> Any:
        return operation() if self.keeping else super().carry_out(name, path, operation, half)

    def strike(self, number: int, name: str, path: str, operation: Operation, half: Half | None) -> Any:
        if number in self.numbers:
            self.keeping = True
            self.keep(number)
            self.keeping = False
        return operation()


# The patches


def _path_of(file: Any, dir_fd: int | None = None) -> str:
    if isinstance(file, int):
        try:
            return os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            return ""
    path = os.fsdecode(file)
    return os.path.abspath(path if dir_fd is None else os.path.join(_path_of(dir_fd), path))


def _opener(points: Points, real: Callable[..., Any]) -> Callable[..., Any]:
    class Raw(io.FileIO):
        where = ""

        def write(self, data: Any) -> int:
            whole, base = bytes(data), super()
            count: int = points.carry_out(
                "write", self.where, lambda: base.write(whole), lambda: base.write(whole[: len(whole) // 2])
            )
            return count

        def truncate(self, size: int | None = None) -> int:
            base = super()
            found: int = points.carry_out("truncate", self.where, lambda: base.truncate(size))
            return found

    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        path = _path_of(file)
        if not set(mode) & set("wax+") or not path.startswith(points.root):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("t", "").replace("b", "")
        raw = points.carry_out("open", path, lambda: Raw(file, plain, closefd, opener))
        raw.where = path
        if buffering == 0:
            return raw
        buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return buffer
        return io.TextIOWrapper(buffer, io.text_encoding(encoding), errors, newline, buffering == 1)

    return opened


def _low_opener(points: Points, real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def operation() -> int:
            return real(path, flags, mode, dir_fd=dir_fd)

        if not flags & FLAGS:
            return operation()
        fd: int = points.carry_out("open", _path_of(path, dir_fd), operation)
        return fd

    return opened


def _by_path(points: Points, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def operated(path: Any, *args: Any, **kwargs: Any) -> Any:
        where = _path_of(path, kwargs.get("dir_fd"))
        return points.carry_out(name, where, lambda: real(path, *args, **kwargs))

    return operated


def _by_two_paths(points: Points, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def operated(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        where = _path_of(target, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
        return points.carry_out(name, where, lambda: real(source, target, *args, **kwargs))

    return operated


def _by_file(points: Points, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def operated(file: Any, *args: Any) -> Any:
        where = _path_of(file if isinstance(file, int) else file.fileno())
        return points.carry_out(name, where, lambda: real(file, *args))

    return operated


def _writer(points: Points, real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    def written(fd: int, data: Any) -> int:
        whole = bytes(data)
        count: int = points.carry_out(
            "write", _path_of(fd), lambda: real(fd, whole), lambda: real(fd, whole[: len(whole) // 2])
        )
        return count

    return written


def _sender(points: Points, real: Callable[..., int]) -> Callable[..., int]:
    def sent(out_fd: int, *args: Any, **kwargs: Any) -> int:
        count: int = points.carry_out("sendfile", _path_of(out_fd), lambda: real(out_fd, *args, **kwargs))
        return count

    return sent
