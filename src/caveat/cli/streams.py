"""Standard output and error that end no run: what nobody reads any more, or no disk takes, is lost and remembered."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Outlet:
    """A standard stream. What cannot be written to it is lost, from then on all of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None
        """Why writing failed first, if it did."""

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def failed(self) -> OSError | None:
        """Why something was lost that somebody still wanted: not because a reader, as `head`, had enough."""
        return None if self.lost is None or self.lost.errno == errno.EPIPE else self.lost

    def _lose(self, error: OSError) -> None:
        self.lost = self.lost or error
        # Python keeps what it could not write, and would try again, and complain, when it ends.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def outlets() -> Iterator[Outlet]:
    """Standard output and error as outlets, of which the first is given; where one is closed, it leads nowhere."""
    # Else the next file that is opened would get its number, and what is meant for the stream.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Outlet(stream or open(os.devnull, "w")) for stream in before)  # noqa: SIM115
    try:
        yield sys.stdout
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
