"""How data sources are written: a kind and a place, or several joined."""

from __future__ import annotations

from ..core import ConfigurationError

KINDS = ("digits", "npz", "npy", "images", "csv", "hub", "silos")
"""What a source can be; all but those of `NAMELESS` are followed by a colon and a path or name."""
NAMELESS = ("digits", "silos")
JOIN = " + "
"""What stands between the parts of a joined source."""


def source_parts(source: str) -> list[str]:
    """The sources that one is joined of, usually one."""
    return source.split(JOIN)


def check_source(key: str, source: str) -> list[str]:
    """The kind of every part of a source; raises ConfigurationError unless it is written as one."""
    parts = source_parts(source)
    for part in parts:
        kind, _, rest = part.partition(":")
        if kind not in KINDS or bool(rest) == (kind in NAMELESS):
            named = f", part {part!r}" if len(parts) > 1 else ""
            raise ConfigurationError(
                f"data.{key} = {source!r}{named}: expected digits, npz:PATH, npy:DIR, images:DIR, csv:PATH or "
                "hub:NAME, "
                "or several joined by ' + '" + ("; or silos" if key == "source" else ""),
                f"data.{key}",
            )
    kinds = [part.partition(":")[0] for part in parts]
    if "silos" in kinds and (len(kinds) > 1 or key != "source"):
        raise ConfigurationError(
            f"data.{key} = {source!r}: silos is no source to join or to draw from, only itself", f"data.{key}"
        )
    if len(kinds) > 1 and "csv" in kinds:
        raise ConfigurationError(
            f"data.{key} = {source!r}: csv cannot be joined, a table's columns are its own", f"data.{key}"
        )
    return kinds
