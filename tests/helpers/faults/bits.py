"""What a run has come to: the bytes of its files, without times and what only times decide."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

IGNORED = {"lock", "checkpoint-durable.json", "report.html", "config.toml", "silo.json", "kept.json", "secret"}
"""Files that hold no result: of no content, an older checkpoint to fall back on, a drawing of the others, what the
user or a silo has said, and what a silo has counted, which repeats what it has sent again."""
TIMES = {"seconds", "federation"}
"""Keys whose values are times, or drawn for every federation."""
SEALS = {"sha256", "files"}
"""Keys of a whole file whose values follow from times, among others."""
GIVEN = {"engine", "given"}
"""Keys of a run's description that decide no result."""


def bits(folder: Path) -> dict[str, str]:
    """A hash of every file that holds a result, by its path."""
    older = {path for states in versions(folder).values() for path in states[:-1]}
    files = sorted(path for path in folder.rglob("[!.]*") if path.is_file() and path.name not in IGNORED)
    files = [path for path in files if path not in older]
    return {str(path.relative_to(folder)): _hash(path) for path in files}


VERSION = re.compile(r"(server-)?\d{6}\.safetensors")
"""The states of a server or a silo, one file per round; which older ones are kept depends on where a run was struck."""
MOST_VERSIONS = 3
"""That of before the newest round, and one to fall back on, may be there beside the newest."""


def versions(folder: Path) -> dict[Path, list[Path]]:
    """The states in every folder that has any, oldest first."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        if VERSION.fullmatch(path.name):
            found.setdefault(path.parent, []).append(path)
    return found


def asked_for(states: Path) -> set[str]:
    """The names of the states in a folder that a command may go back to: of the server, or in a silo's own books."""
    kept = [read_json(path)["server"] for path in states.glob("checkpoint-[0-9]*.json")]
    books = states.parents[2] / "kept.json"
    own = read_json(books)["states"] if books.is_file() else []
    return {*kept, *(f"{each.get('t', -1):06d}.safetensors" for each in own)}


def read_json(path: Path) -> dict[str, Any]:
    """What a file holds; nothing where it is damaged."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return {"server": "", "states": []}
    return {"server": "", "states": [], **found}


def concerns(target: str, place: str) -> bool:
    """Whether damage to a file or folder shows in a file: in it, or in an older state, as the newest is gone."""
    a, b = Path(target), Path(place)
    stands_in = a.parent == b.parent and bool(VERSION.fullmatch(a.name) and VERSION.fullmatch(b.name))
    return a == b or a in b.parents or stands_in


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
            left_out = SEALS | GIVEN if path.name == "run.json" else SEALS
            kept = {key: each for key, each in value.items() if key not in left_out}
            data = json.dumps(_timeless(kept), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value
