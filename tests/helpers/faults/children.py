"""Calls in forked children of this process, which has imported everything already: a command takes 0.1 s, not 3 s.

A child leads a process group of its own, so that it ends with its workers, whatever it does.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WALL = 60.0
"""Seconds after which a child is killed, which is a failure: many times what any undisturbed command takes."""
MOST = 3 << 30
"""Bytes of memory beyond those of this process at which a child is killed, before the machine is short of them."""
LARGEST_FILE = 1 << 31
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ended:
    """How a child has ended."""

    status: int
    """The exit status; negative for a signal."""
    out: str
    err: str
    seconds: float
    """Of the CPU, so that a busy machine changes nothing."""
    megabytes: float
    """The most that it had in memory beyond what this process had when it was forked, which grows test by test."""
    killed: str = ""
    """Why it was killed by this process: too slow or too large."""


def in_child(call: Callable[[], object]) -> Ended:
    """Carry out a call in a forked child and wait for it; `SystemExit` is its exit status, other errors are 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork, which are idle here
            shared = _resident()
            pid = os.fork()
        if pid == 0:
            _child(call, out.fileno(), err.fileno())
        status, used, killed = _wait(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # workers that are left
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
        return Ended(status, *texts, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024 - shared, killed)


def _resident() -> float:
    """Megabytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _child(call: Callable[[], object], out: int, err: int) -> None:
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_IGN if signum == signal.SIGXFSZ else signal.SIG_DFL)
        _streams(out, err)
        warnings.resetwarnings()
        warnings.simplefilter("default")
        call()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _streams(out: int, err: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(fd, mode, buffering=0, closefd=False), "utf-8", write_through=True)  # noqa: SIM115
        for fd, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
    )


def _wait(pid: int) -> tuple[int, resource.struct_rusage, str]:
    began, killed = time.monotonic(), ""
    most = _memory(os.getpid()) + MOST
    ending = os.pidfd_open(pid)
    try:
        while not select.select([ending], [], [], 0.05)[0]:
            if time.monotonic() - began > WALL:
                killed = f"still at work after {WALL:.0f} s"
            elif _memory(pid) > most:
                killed = f"{MOST >> 30} GB beyond what was there"
            if killed:
                os.killpg(pid, signal.SIGKILL)
                break
        _, status, used = os.wait4(pid, 0)
    finally:
        os.close(ending)
    return os.waitstatus_to_exitcode(status), used, killed


def _memory(pid: int) -> int:
    """Bytes that a process has in memory; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0
