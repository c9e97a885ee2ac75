"""The fork server of a silo: a daemon that imports caveat and torch once, and forks for each message.

For every message, Flower starts a process that spends most of its time on importing torch. At a silo started by
`silo.sh`, that process is `forward_message.py`: it sends its arguments, folder, environment and open files to the
daemon over a socket. The daemon forks; the child runs Flower's own command and exits. Only imported modules persist
between messages: no data, models or states, and no code that is part of a run.

    python -P -m caveat.federation.silo.fork_server FOLDER NODE     FOLDER is the silo's, NODE is a process ID

The daemon exits when its node has exited, and when an imported file has changed; `silo.sh` then starts another one.
"""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from ...engines.allocator import use_huge_pages
from .forward_message import LENGTH, LOCK, SOCKET, TAKEN, is_starting, peer

COMMAND = "flwr-clientapp"
"""Flower's command for one message."""
LONG = ("caveat.federation.silo.app", "caveat.federation.server.app", "torch._dynamo", "httpcore")
"""The modules that a silo's app imports, some of them only while running tasks."""
LOOK = 1.0
"""Seconds between two checks that the node is still running."""
SLOW = 5.0
"""Seconds to wait for the request of a message's process."""
DECIDING = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "ATEN_", "TORCH", "PYTORCH", "CUDA_")
"""Prefixes of environment variables that are read at import."""
LONGEST = 1 << 24
"""Maximum number of bytes of a request."""

State = tuple[int, int, int] | None
"""Modification time, size and inode of a file; None if it is missing."""


class Request(NamedTuple):
    """The arguments, the folder and the environment of the process that Flower starts for a message."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


def main() -> None:
    os.umask(0o077)
    os.chdir(sys.argv[1])
    node, began = int(sys.argv[2]), deciding(os.environ)
    if is_starting():
        return  # another daemon is running
    with open(LOCK, "ab") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        command = imported()
        files = imported_files()  # before others see the socket, so a later change is noticed
        with listening() as listener:
            connection = waited(listener, node, files, began)
        if connection is None:
            Path(SOCKET).unlink(missing_ok=True)
    if connection is not None:
        carry_out(connection, command)


def imported() -> Callable[[], object]:
    """Import the slow modules; return Flower's command for a message."""
    use_huge_pages()
    for name in LONG:
        import_module(name)
    (point,) = entry_points(group="console_scripts", name=COMMAND)
    command: Callable[[], object] = point.load()
    return command


def state_of(path: str) -> State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def imported_files() -> dict[str, State]:
    """Return the imported files with their present states."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: state_of(file) for file in files if isinstance(file, str)}


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """Open a socket that only this user can reach."""
    begun = f"{SOCKET}.new"
    Path(begun).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(begun)
        os.chmod(begun, 0o600)
        listener.listen()
        os.replace(begun, SOCKET)  # under its name it never refuses a connection, and is never open to others
        listener.settimeout(LOOK)
        yield listener


def waited(
    listener: socket.socket, node: int, files: Mapping[str, State], began: Mapping[str, str]
) -> socket.socket | None:
    """Return None when the daemon should exit; in a fork, return the connection for its message."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the requesting process waits for a fork, the daemon does not
    gc.collect()
    gc.freeze()  # keeps memory shared with forks
    while is_there(node):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        # The sender may have exited, or be another user.
        with connection, contextlib.suppress(OSError, ValueError), asked(connection) as (request, opened):
            if stale := [file for file, state in files.items() if state_of(file) != state]:
                connection.sendall(f"{stale[0]} has changed since it was imported".encode())
                return None
            if differ := deciding(request.environment).items() ^ began.items():
                connection.sendall(f"it was started with another {min(differ)[0]}".encode())
            elif os.fork() == 0:
                return begun(connection, request, opened)
    return None


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def asked(connection: socket.socket) -> Iterator[tuple[Request, list[int]]]:
    """Receive a request, and the standard input, output and error of its sender. Raises OSError or ValueError for any
    other message, and for another user."""
    connection.settimeout(SLOW)
    if peer(connection)[1] != os.getuid():
        raise ValueError("the request is from another user")
    head, opened, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    try:
        (length,) = LENGTH.unpack(head + received(connection, LENGTH.size - len(head)))
        if length > LONGEST or len(opened) != 3:
            raise ValueError("expected a request with three open files")
        yield Request(**json.loads(received(connection, length))), opened
    finally:
        for each in opened:
            os.close(each)


def received(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        if not (part := connection.recv(count - len(found))):
            raise ValueError("the sender has exited")
        found += part
    return bytes(found)


def deciding(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(DECIDING)}


def begun(connection: socket.socket, request: Request, opened: Sequence[int]) -> socket.socket:
    """In a fork, become the requested process, or exit if nothing waits for it any more."""
    try:
        connection.sendall(TAKEN)
        for place, file in enumerate(opened):
            os.dup2(file, place)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(request.folder)
        os.environ |= request.environment
        sys.argv = [COMMAND, *request.arguments]
        return connection.dup()
    except BaseException:
        os._exit(1)  # never continue as a second daemon


def carry_out(connection: socket.socket, command: Callable[[], object]) -> None:
    """Run Flower's command, and send its status to the waiting process."""
    status: object = 1
    try:
        status = command() or 0
    except SystemExit as end:
        status = end.code or 0
        raise
    finally:
        with contextlib.suppress(OSError):
            connection.sendall(str(status if isinstance(status, int) else 1).encode())


if __name__ == "__main__":
    main()
