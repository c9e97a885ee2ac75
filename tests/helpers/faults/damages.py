"""Damage to a file or a folder of a run, each a function of a seed; what is damaged is found by walking the folder."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """What can be damaged, and what it takes."""

    run: Path
    name: str
    """The path of the file or folder below `run`."""
    outside: Path
    """A folder of the user's, in which nothing may ever change."""
    earlier: Sequence[Path] = ()
    """The run's folder as it was at earlier points, the oldest first."""

    @property
    def path(self) -> Path:
        return self.run / self.name

    @property
    def older(self) -> list[Path]:
        """Other contents that the file had before, without repetition."""
        now, found = self.path.read_bytes(), dict[bytes, Path]()
        for copy in (folder / self.name for folder in self.earlier):
            if copy.is_file() and copy.read_bytes() != now:
                found.setdefault(copy.read_bytes(), copy)
        return list(found.values())


Damage = Callable[[Place, random.Random], None]


def flip(place: Place, choose: random.Random) -> None:
    data = bytearray(place.path.read_bytes())
    bit = choose.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    place.path.write_bytes(data)


def truncate(place: Place, choose: random.Random) -> None:
    size = place.path.stat().st_size
    os.truncate(place.path, choose.choice([0, size // 2, size - 1, choose.randrange(size)]))


def delete(place: Place, choose: random.Random) -> None:
    shutil.rmtree(place.path) if place.path.is_dir() else place.path.unlink()


def nul(place: Place, choose: random.Random) -> None:
    """What a file system may leave of a file after a power cut."""
    place.path.write_bytes(bytes(place.path.stat().st_size))


def older(place: Place, choose: random.Random) -> None:
    shutil.copyfile(choose.choice(place.older), place.path)


def link(place: Place, choose: random.Random) -> None:
    """A link to something else of the user's."""
    target = place.outside / "precious"
    target.mkdir() if place.path.is_dir() else target.write_text('{"precious": [1, 2, 3]}\n')
    if target.is_dir():
        (target / "000001.safetensors").write_bytes(b"precious")
        (target / ".precious.1.part").write_bytes(b"precious")
    _to_link(place.path, target)


def link_to_copy(place: Place, choose: random.Random) -> None:
    """A link to the same content, elsewhere."""
    target = place.outside / place.path.name
    shutil.copytree(place.path, target) if place.path.is_dir() else shutil.copyfile(place.path, target)
    _to_link(place.path, target)


def dangling(place: Place, choose: random.Random) -> None:
    """A link to what is not there, and is not to be made."""
    _to_link(place.path, place.outside / "absent")


def swapped(place: Place, choose: random.Random) -> None:
    """Another file of the run with the same ending, such as another silo's state."""
    shutil.copyfile(choose.choice(_others(place)), place.path)


def _others(place: Place) -> list[Path]:
    now = place.path.read_bytes()
    found = [path for path in sorted(place.run.rglob(f"*{place.path.suffix}")) if path.is_file()]
    return [path for path in found if path != place.path and path.read_bytes() != now]


def _to_link(path: Path, target: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(target)


OF_FILES: dict[str, Damage] = {
    "flip": flip, "truncate": truncate, "delete": delete, "nul": nul, "older": older, "swapped": swapped, "link": link,
    "link-to-copy": link_to_copy, "dangling": dangling,
}  # fmt: skip
OF_FOLDERS: dict[str, Damage] = {"delete": delete, "link": link, "link-to-copy": link_to_copy, "dangling": dangling}
SEEDED = {"flip": 4, "truncate": 2, "older": 2, "swapped": 1}
"""How many seeds a damage is worth in the long form; the others are the same for each."""
LINKS = {"link", "link-to-copy", "dangling"}


def possible(place: Place) -> list[str]:
    """The damages that change this file or folder."""
    if place.path.is_dir():
        return list(OF_FOLDERS)
    empty = place.path.stat().st_size == 0
    without = {"flip", "truncate", "nul", "older", "swapped"} if empty else set()
    without |= set() if empty or place.older else {"older"}
    without |= set() if empty or _others(place) else {"swapped"}
    return [name for name in OF_FILES if name not in without]


def apply(place: Place, damage: str, seed: int) -> None:
    known = OF_FOLDERS if place.path.is_dir() else OF_FILES
    known[damage](place, random.Random(f"{place.name} {damage} {seed}"))


def targets(run: Path) -> list[str]:
    """Every file and folder of a run's folder, whatever there is, temporary files apart."""
    return [str(path.relative_to(run)) for path in sorted(run.rglob("[!.]*"))]
