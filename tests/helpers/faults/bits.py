"""What a run has come to: the bytes of its files, without times and what only times decide."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

IGNORED = {"lock", "checkpoint-durable.json", "report.html", "config.toml", "silo.json", "kept.json", "secret"}
"""Files that hold no result: of no content, an older checkpoint to fall back on, a drawing of the others, what the
user or a silo has said, and what a silo has counted, which repeats what it has sent again."""
TIMES = {"seconds", "federation"}
"""Keys whose values are times, or drawn for every federation."""
SEALS = {"sha256", "files"}
"""Keys of a whole file whose values follow from times, among others."""


def bits(folder: Path) -> dict[str, str]:
    """A hash of every file that holds a result, by its path."""
    files = sorted(path for path in folder.rglob("[!.]*") if path.is_file() and path.name not in IGNORED)
    files = [path for path in files if not _durable_alone(path)]
    return {str(path.relative_to(folder)): _hash(path) for path in files}


def _durable_alone(path: Path) -> bool:
    """Whether a file is the server's state of such an older checkpoint."""
    if not (path.name.startswith("server-") and path.parent.name == "state"):
        return False
    newest, durable = (_server_of(path.with_name(f"checkpoint{name}.json")) for name in ("", "-durable"))
    return path.name == durable != newest


def _server_of(checkpoint: Path) -> str:
    try:
        return str(json.loads(checkpoint.read_bytes())["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def tree(folder: Path) -> dict[str, str]:
    """Everything below a folder, byte by byte, links included."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        else:
            found[name] = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _hash(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".json":
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if isinstance(value, dict):
            kept = {key: each for key, each in value.items() if key not in SEALS}
            data = json.dumps(_timeless(kept), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value
