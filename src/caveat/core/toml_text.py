"""What makes a small TOML text take minutes and gigabytes to read."""

from __future__ import annotations

import re

LONGEST = 1_000_000
"""Characters of a configuration."""
_DEEP_KEY = re.compile(r"(?m)(?:^|[\[{,])[ \t]*(?:[\w\"'-]{1,100}[ \t]*\.[ \t]*){20}")


def unreadable(text: str) -> str:
    """Why a text is not to be read as TOML, in words; empty where nothing speaks against it."""
    if len(text) > LONGEST:
        return f"{len(text):,} characters, expected at most {LONGEST:,}"
    # The time that Python's reader takes grows with the square of the parts of a key.
    return "a key is nested too deeply" if _DEEP_KEY.search(text) else ""
