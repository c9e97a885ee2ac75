"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def end_with_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when it ends, however it ends; to be called first of all in a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
