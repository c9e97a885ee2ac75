"""Methods of a user's own for tests: in a file, or in what pip leaves of an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

from caveat.methods import METHODS, plugins

ABOUT = "Metadata-Version: 2.1\nName: caveat-mine\nVersion: 1.0\n"


def put_package(folder: Path, code: str, entry: str = "caveat_mine:Mine") -> Path:
    """An installed package with a method `mine`; the folder is to be on Python's path."""
    (folder / "caveat_mine.py").write_text(code)
    about = folder / "caveat_mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(ABOUT)
    (about / "entry_points.txt").write_text(f"[caveat.methods]\nmine = {entry}\n")
    return folder


def forget_own() -> None:
    """As a new process would begin."""
    METHODS._added.clear()
    plugins._NAMED.clear()
    sys.modules.pop("caveat_mine", None)
