"""What this machine has: memory, and a folder for what takes long to compute."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ConfigurationError

FLOAT = 4
"""Bytes of a float32."""


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: float, what: str, key: str = "") -> None:
    """Raises ConfigurationError if something, in words, takes more bytes than this machine has of memory."""
    if needed > memory():
        told = f"{what}: {needed / 1e9:,.0f} GB of memory, this machine has {memory() / 1e9:,.0f}"
        raise ConfigurationError(told, key)


def cache_folder() -> Path:
    """$CAVEAT_CACHE, or the user's own folder for caches."""
    own = os.environ.get("CAVEAT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "caveat"
