"""How many rows silos say to have, which nobody but they can count: what is above belief needs the operator's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ..core import ConfigurationError, SiloId
from ..core.silo_info import SPLITS

TIMES_ROWS = 10
"""How many times the median of all others a silo may say to have without the operator's confirmation."""
FILE = ".rows"
"""What comes behind a silo's name in the file with which the operator confirms its rows."""


COUNTED = SPLITS
"""Something is added up of each: models, sums after training, and the figures of all silos' test inputs together."""
ROUNDED = 2
"""Rows by which a split of two silos may differ for being a rounded share."""


def incredible(
    counts: Mapping[SiloId, int], confirmed: Mapping[SiloId, int], split: str = "train"
) -> dict[SiloId, str]:
    """The silos whose numbers of examples of a split are not to be believed without a confirmation, and why.

    A silo is compared with the median of all others; one that is alone is believed. `confirmed` are the most rows that
    the operator has confirmed, by silo, of training, and so of any other split.
    """
    what, room = ("training", 0) if split == "train" else (split, ROUNDED)
    reasons: dict[SiloId, str] = {}
    for silo, count in counts.items():
        others = [each for name, each in counts.items() if name != silo]
        if not others or count <= max(TIMES_ROWS * (median(others) + room), confirmed.get(silo, 0)):
            continue
        reasons[silo] = (
            f"says to have {count:,} {what} examples, more than {TIMES_ROWS} times the median of the other silos, "
            f"{median(others):,.0f}; once you know that it has, write the number into {silo}{FILE} in the project's "
            "folder silos"
        )
    return reasons


@dataclass(frozen=True)
class Confirmed:
    """The numbers of rows that the operator has confirmed, in NAME.rows beside the silos' keys."""

    folder: Path | None = None

    def read(self) -> dict[SiloId, int]:
        """Raises ConfigurationError, naming the file, for one that holds no number."""
        files = [] if self.folder is None else sorted(self.folder.glob(f"*{FILE}"))
        return {path.name.removesuffix(FILE): _number_in(path) for path in files}


def _number_in(path: Path) -> int:
    try:
        text = path.read_text(encoding="utf-8").strip()
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise ValueError(f"{text[:40]!r}")
        return int(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected the number of a silo's training examples: {error}") from None
