"""What trackers share: they open a run of theirs with its first round, and take numbers and settings alone."""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from ..core import ConfigurationError
from ..core.errors import short_repr
from ..runs.progress import Callback, Scalar

OF_SUMMARY = ("mean", "worst", "pooled")
"""Parts of a summary whose numbers trackers take, beside those of every silo."""


class Tracker(Callback):
    """A callback that writes to a tool of its own.

    That tool is opened when the first round is over: processes of the run have begun by then, and take none of its
    threads along.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """What has to be installed, as it is imported."""

    def __init__(self, place: str | Path | None = None) -> None:
        """Raises ConfigurationError if its package is not installed, for a `place` that is none, and for a folder that
        cannot be written to.
        """
        if place is not None and (not isinstance(place, str | Path) or not str(place)):
            raise ConfigurationError(f"{self.name}: place = {short_repr(place)}, expected a folder or an address")
        if find_spec(self.package) is None:
            raise ConfigurationError(
                f"the tracker {self.name} needs a package that is not installed: pip install 'caveat[{self.name}]'"
            )
        self.place = place
        _check_writable(self.name, self.local)
        self._title, self._folder, self._settings, self._opened = "", "", dict[str, Scalar](), False

    @property
    def local(self) -> Path | None:
        """The folder that it writes to; None where it is sent elsewhere, or the tool finds one itself."""
        return None if self.place is None else Path(self.place)

    def begin(self, title: str, rounds: int) -> None:
        self._title, self._opened = title, False

    def settings(self, folder: str, values: Mapping[str, Scalar]) -> None:
        self._folder, self._settings = folder, dict(values)

    def round(self, number: int, phase: str, metrics: Mapping[str, float]) -> None:
        self._open_once()
        self.log(number, {f"round/{name}": value for name, value in metrics.items()})

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._open_once()
        self.log(summary["rounds_run"], dict(numbers_of(summary)))

    def end(self) -> None:
        if self._opened:
            self.close()
            self._opened = False

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        """Open the tool for the run in a folder; `key` stays the same when that run goes on."""
        raise NotImplementedError

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write down numbers of a round."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over."""

    def _open_once(self) -> None:
        if not self._opened:
            key = hashlib.sha256(str(Path(self._folder).resolve()).encode()).hexdigest()[:12]
            self.open(self._title, key, self._folder, self._settings)
            self._opened = True


def _check_writable(name: str, folder: Path | None) -> None:
    """Raises ConfigurationError for a folder that cannot be made or written to."""
    if folder is None:
        return
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ConfigurationError(f"{name}: place = {short_repr(str(folder))}: {there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{name}: place = {short_repr(str(folder))}: {there} cannot be written to")


def numbers_of(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures on the test split: `mean/accuracy`, `worst/accuracy`, `pooled/accuracy`, `silo/NAME/accuracy` ..."""
    for part in OF_SUMMARY:
        yield from _numbers(part, summary.get(part) or {})
    for silo in summary.get("silos", ()):
        yield from _numbers(f"silo/{silo['name']}", silo.get("test") or {})


def _numbers(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{place}/{name}", float(value)
