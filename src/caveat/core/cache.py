"""Where a machine keeps what takes long to compute of data that are on it."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$CAVEAT_CACHE, or the user's own folder for caches."""
    own = os.environ.get("CAVEAT_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "caveat"
