"""Replaces `flwr-clientapp` at a silo: forwards each message to the silo's daemon.

It runs as a script and needs only Python's standard library, because every message starts it again. Without a daemon
that can take the message, this process becomes Flower's own command, which does the same but takes seconds longer.

    python -IS forward_message.py FOLDER COMMAND [ARGUMENT]...     FOLDER has the socket, COMMAND is Flower's
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

SOCKET, LOCK = "resident", "resident.lock"
"""The names of a daemon's socket and lock, in its silo's private folder."""
STARTING = 20.0
"""Seconds to wait for a daemon that is starting."""
PATIENCE = 10.0
"""Seconds for a daemon to take a message, after which it is killed."""
TAKEN = b"+"
"""The answer when a process has started with a message. Any other answer is the reason why none has."""
LENGTH = struct.Struct("!I")


class NotTaken(Exception):
    """No process took the message; the text is the reason."""


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Use a folder as the current one within this context, because paths of sockets must be short."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def is_starting() -> bool:
    """Return whether a daemon holds the lock of the current folder."""
    try:
        with open(LOCK, "ab") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


def connected(folder: str) -> socket.socket:
    """Connect to the daemon of a folder. Raises NotTaken if there is none."""
    until = time.monotonic() + STARTING
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with inside(folder):
            while True:
                try:
                    connection.connect(SOCKET)
                except OSError as error:
                    if time.monotonic() > until or not is_starting():
                        raise NotTaken(f"no daemon is running ({error.strerror})") from None
                    time.sleep(0.05)
                else:
                    return connection
    except OSError as error:
        raise NotTaken(f"{folder}: {error.strerror}") from None


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end; 0 and this user if the system does not provide them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.getuid()
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def hand_over(connection: socket.socket, arguments: Sequence[str]) -> None:
    """Send a message with this process's open files. Raises NotTaken if the other end does not take it."""
    process, user = peer(connection)
    if user != os.getuid():
        raise NotTaken("it belongs to another user")
    request = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    connection.settimeout(PATIENCE)
    try:
        socket.send_fds(connection, [LENGTH.pack(len(request))], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(len(TAKEN))
        if answer != TAKEN:
            raise NotTaken((answer + connection.recv(1000)).decode(errors="replace") or "it has exited")
    except TimeoutError:
        if process:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        raise NotTaken(f"it did not answer for {PATIENCE:.0f} s, and was killed") from None
    except OSError as error:
        raise NotTaken(f"it has exited ({error.strerror})") from None


def outcome(connection: socket.socket) -> int:
    """Return the exit status of the process that took the message; 1 if it was killed."""
    connection.settimeout(None)
    said = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(100):
            said += part
    return int(said) if said.isdigit() else 1


def main() -> int:
    folder, command, *arguments = sys.argv[1:]
    try:
        connection = connected(folder)
        hand_over(connection, arguments)
    except NotTaken as why:
        print(f"no daemon processes this message, so it takes longer: {why}", file=sys.stderr, flush=True)
        os.execv(command, [command, *arguments])
    return outcome(connection)


if __name__ == "__main__":
    sys.exit(main())
