"""A silo's splits when it joined, stored on its own disk, and the changes of its source since then.

Counts of changes stay at the silo.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import ConfigurationError, Data, DataError, Payload, Silo, SiloId, Tensors
from ...core.silo import SPLITS
from ...core.text import escaped
from ...data import DataSettings
from ...data.agreement import OwnSilos
from ...data.equal_rows import apart
from ...data.held_out_again import HASH, contents, keyed
from ...data.raw_samples import Array, Pool
from ...data.sources import read_silo, silo_files
from ...files import (
    check_file,
    privately,
    read_payload,
    record_of,
    sum_of,
    sum_of_bytes,
    to_bytes,
    write_bytes,
    write_record,
)
from ...files.schema import SCHEMA, DataFile, NoticedChange, SourceState
from ...runs.stored_preparation import as_record, without_references


class SourceChange(NamedTuple):
    """The differences between a source and its stored rows."""

    gone: int
    new: int
    relabeled: int
    """Number of rows whose label has changed."""
    leaving: tuple[int, ...]
    """Positions of stored rows that are missing or changed, including labels."""

    def __str__(self) -> str:
        return f"{_count(self.gone)} missing, {_count(self.new)} new, {_count(self.relabeled)} with another label"

    @property
    def none(self) -> bool:
        """Whether the rows are the same, in any order."""
        return not (self.gone or self.new or self.relabeled)


def _count(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}"


def looks_of(files: Sequence[Path]) -> str:
    """Return a hash of names, sizes and times of files; if it is the same, the files are assumed to be unchanged."""
    found = [(path.name, (of := path.stat()).st_size, of.st_mtime_ns, of.st_ctime_ns) for path in files]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def holds_of(files: Sequence[Path]) -> str:
    """Return a hash of the names and contents of files."""
    return hashlib.sha256(json.dumps([(path.name, sum_of(path).sha256) for path in files]).encode()).hexdigest()


def state_of(files: Sequence[Path]) -> SourceState:
    """Return the two hashes of files: of names, sizes and times, and of names and contents."""
    return SourceState(looks=looks_of(files), holds=holds_of(files))


def rows_of(pool: Pool, columns: Sequence[str], key: bytes) -> Tensors:
    """Return for each row of a pool, in its order, its position and the keyed hashes of its content and label. Raises
    DataError, naming the column, if a table no longer has it."""
    if absent := [name for name in columns if name not in {column.name for column in pool.table}]:
        raise DataError(f"{pool.origin or pool.domain}: no column {absent[0]!r} any more")
    labels = keyed((label.encode() for label in pool.classes), key)
    return {
        "position": torch.arange(len(pool.y)),
        "content": _tensor(keyed(contents(pool, columns), key)),
        "label": _tensor([labels[label] for label in pool.y.tolist()]),
    }


def _tensor(hashes: Sequence[bytes]) -> torch.Tensor:
    found: Array = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH)
    return torch.from_numpy(found.copy())


def change_of(then: Tensors, now: Tensors) -> SourceChange:
    """Return how the rows `now` differ from the rows `then`, in any order; if fewer of several equal rows are left, the
    last ones count as missing."""
    before, after = _rows(then), _rows(now)
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    other_label = (_by_content(gone) & _by_content(new)).total()
    leaving = []
    for i in range(len(before) - 1, -1, -1):
        if gone[before[i]] > 0:
            gone[before[i]] -= 1
            leaving.append(i)
    count = len(leaving)
    return SourceChange(count - other_label, new.total() - other_label, other_label, tuple(reversed(leaving)))


def _rows(tensors: Tensors) -> list[tuple[bytes, bytes]]:
    return [
        (bytes(content), bytes(label))
        for content, label in zip(tensors["content"].numpy(), tensors["label"].numpy(), strict=True)
    ]


def _by_content(rows: Counter[tuple[bytes, bytes]]) -> Counter[bytes]:
    found = Counter[bytes]()
    for (content, _), count in rows.items():
        found[content] += count
    return found


ROWS = "rows"
"""The group of tensors with the rows from which the splits were made."""
CHANGES = ("stop", "keep", "drop")
"""Valid values of `data.changed`."""
OTHERWISE = (
    'restore the source, or set data.changed in silo.toml to "keep" to continue with the stored rows, or to "drop" '
    "to continue without the missing rows"
)


class DataChanged(DataError):
    """A silo's data have changed since it joined. The server learns nothing else."""


@dataclass(frozen=True)
class FrozenData:
    """The stored data of a silo for one federation."""

    said: Path
    """The file that describes the tensors next to it."""
    silo: SiloId
    settings: DataSettings
    """Settings with which the silo reads its own source."""
    changed: str
    """The reaction to a changed source: "stop", "keep" or "drop"."""
    key: Callable[[], bytes]
    """The key of hashes of rows."""
    check: Callable[[Silo], None]
    """A check that raises DataError for a silo that cannot train."""

    def known(self) -> DataFile | None:
        """Return the stored description; None if nothing is stored. Raises DataError if it is damaged."""
        return record_of(self.said, DataFile)

    def tensors(self, known: DataFile) -> Path:
        """Return the file of the splits."""
        return self.said.with_name(known.place or f"{self.said.stem}.safetensors")

    def read(self, known: DataFile) -> Silo:
        """Return the stored silo. Raises DataError if the file is damaged."""
        check_file(self.tensors(known), known.file)
        return _silo(self.silo, read_payload(self.tensors(known)))

    def state(self) -> SourceState:
        """Return the hashes of the source."""
        return state_of(silo_files(self.settings, self.silo))

    def made(self, pool: Pool, own: OwnSilos, source: SourceState, again: DataFile | None) -> tuple[DataFile, bytes]:
        """Return the description and the tensors to store of a silo that is read for the first time, or again because
        the tensors are missing; `again` is its earlier description.

        Raises DataChanged if earlier splits for this federation, of any silo.toml, had other rows of the source;
        DataError if the source was written in the meantime.
        """
        silo, columns = own.silos[0], sorted(column.name for column in pool.table)
        data = to_bytes(_tensors(silo) | {ROWS: rows_of(pool, columns, self.key())})
        made = sum_of_bytes(data)
        for path in sorted(self.said.parent.glob("data-*.json")):
            other = again if path == self.said else record_of(path, DataFile)
            if other is not None and other.file != made:
                raise DataChanged(
                    f"silo {self.silo!r}: {self.settings.source} no longer has the rows from which {path} was made "
                    "when the silo joined: restore the source and [data] of silo.toml"
                )
        if looks_of(silo_files(self.settings, self.silo)) != source.looks:
            raise DataError(f"{self.settings.source} changed while caveat was reading it: start again")
        indices = {split: index.numpy() for split, index in silo.indices.items() if split in SPLITS}
        if pool.table and (told := apart(pool, indices)):
            self._log(f"{self.settings.source}: {told}")
        known = {
            "schema": SCHEMA, "file": made, "preparation": as_record(own.silos.preparation),
            "source": source, "columns": columns, "told": own.schema.to_json(),
        }  # fmt: skip
        return DataFile.model_validate(known), data

    def store(self, known: DataFile, data: bytes) -> None:
        """Write the data, readable for the silo only."""
        write_record(self.said, known, lasting=True, opener=privately)
        write_bytes(self.tensors(known), data, lasting=True, opener=privately)

    def checked(self, known: DataFile) -> DataFile:
        """Return the data to continue with, after comparing the source with its earlier state.

        Files are read only if their sizes or times differ. Raises DataChanged, with the number of rows, for a change
        that silo.toml does not allow.
        """
        self._tidy(known)
        noticed = known.noticed if known.noticed is not None and known.noticed.rule == self.changed else None
        try:
            files = silo_files(self.settings, self.silo)
            looks = looks_of(files)
            if looks in (known.source.looks, noticed.looks if noticed else None):
                return known
            now = SourceState(looks=looks, holds=holds_of(files))
            if noticed is not None and now.holds == noticed.holds:
                return self._write(known, noticed=noticed.model_copy(update={"looks": looks}))
            if now.holds == known.source.holds:
                return self._write(known, source=now)
            rows = rows_of(read_silo(self.settings, self.silo), known.columns, self.key())
        except (ConfigurationError, DataError, OSError) as error:
            return self._unreadable(known, error)
        change = change_of(read_payload(self.tensors(known))[ROWS], rows)
        if change.none:
            return self._write(known, source=now)
        told = f"silo {self.silo!r}: {self._place(files)} has changed since the silo joined: {change}"
        if self.changed == "stop":
            raise DataChanged(f"{told}; {OTHERWISE}")
        noticed = NoticedChange(looks=now.looks, holds=now.holds, rule=self.changed)
        if self.changed == "drop" and change.leaving:
            return self._without(known, change, noticed, told)
        self._log(f'{told}; data.changed = "{self.changed}": continuing with the stored rows')
        return self._write(known, noticed=noticed)

    def _unreadable(self, known: DataFile, error: Exception) -> DataFile:
        told = f"silo {self.silo!r}: {self.settings.source} can no longer be read: {error}"
        if self.changed == "keep":
            self._log(f'{told}; data.changed = "keep": continuing with the stored rows')
            return known
        raise DataChanged(f'{told}; restore the source, or set data.changed = "keep" in silo.toml') from None

    def _without(self, known: DataFile, change: SourceChange, noticed: NoticedChange, told: str) -> DataFile:
        """Store the splits without missing rows, and delete the earlier ones."""
        groups = read_payload(self.tensors(known))
        rows = groups[ROWS]
        stays = torch.ones(len(rows["position"]), dtype=torch.bool)
        stays[list(change.leaving)] = False
        before = _silo(self.silo, groups)
        silo, left = _without_rows(before, rows["position"][~stays])
        try:
            self.check(silo)
        except DataError as error:
            raise DataChanged(
                f"{told}; without the missing rows the silo cannot train ({error}); `caveat flower delete-data "
                f"{self.said.parent}` deletes the stored copies of these rows"
            ) from None
        data = to_bytes(_tensors(silo) | {ROWS: {name: each[stays] for name, each in rows.items()}})
        place = f"{self.said.stem}-{sum_of_bytes(data).sha256:.8}.safetensors"
        write_bytes(self.said.with_name(place), data, lasting=True, opener=privately)
        dropped = {split: known.dropped.get(split, 0) + left[split] for split in SPLITS}
        found = self._write(
            known,
            file=sum_of_bytes(data), place=place, noticed=noticed, preparation=without_references(known.preparation),
            dropped={split: count for split, count in dropped.items() if count},
        )  # fmt: skip
        self._tidy(found)
        counts = ", ".join(f"{split} {count}" for split, count in left.items() if count) or "none in a split"
        self._log(f'{told}; data.changed = "drop": {len(change.leaving)} removed ({counts}), none added')
        return found

    def _tidy(self, known: DataFile) -> None:
        """Delete tensors from before rows were removed, including those that a killed process left."""
        for path in self.said.parent.glob(f"{self.said.stem}*.safetensors"):
            if path != self.tensors(known):
                path.unlink()

    def _write(self, known: DataFile, **changes: object) -> DataFile:
        found = known.model_copy(update=changes)
        write_record(self.said, found, lasting=True, opener=privately)
        return found

    def _place(self, files: tuple[Path, ...]) -> str:
        return str(files[0]) if len(files) == 1 else self.settings.source

    def _log(self, text: str) -> None:
        """Write a line to the silo's own log."""
        print(escaped(text), file=sys.stderr, flush=True)


def _without_rows(silo: Silo, positions: Tensor) -> tuple[Silo, dict[str, int]]:
    """Return a silo without the rows at `positions` of its source, and the numbers of these rows by split."""
    stays = {split: ~torch.isin(silo.indices[split], positions) for split in SPLITS}
    train, validation, calibration, test = (getattr(silo, split).part(stays[split]) for split in SPLITS)
    indices = {name: index[stays[name]] if name in stays else index for name, index in silo.indices.items()}
    left = {split: int((~each).sum()) for split, each in stays.items()}
    subgroups, values = (
        {split: of[stays[split]] for split, of in each.items()} for each in (silo.subgroups, silo.values)
    )
    return replace(
        silo, train=train, validation=validation, calibration=calibration, test=test, indices=indices,
        subgroups=subgroups, values=values,
    ), left  # fmt: skip


def _tensors(silo: Silo) -> Payload:
    parts = {split: getattr(silo, split) for split in SPLITS} | {f"stream.{n}": d for n, d in silo.streams.items()}
    groups = {name: {"x": data.x, "y": data.y} for name, data in parts.items()}
    of = {"subgroups": silo.subgroups, "values": silo.values, "indices": silo.indices}
    groups |= {name: dict(each) for name, each in of.items() if each or name == "indices"}
    return groups | {f"domain.{silo.domain}": {}}


def _silo(name: SiloId, groups: Payload) -> Silo:
    data = {group: Data(t["x"], t["y"]) for group, t in groups.items() if set(t) == {"x", "y"}}
    domain = next(group for group in groups if group.startswith("domain.")).removeprefix("domain.")
    indices: dict[str, Tensor] = groups["indices"]
    streams = {group.removeprefix("stream."): each for group, each in data.items() if group.startswith("stream.")}
    subgroups, values = (groups.get(name, {}) for name in ("subgroups", "values"))
    train, validation, calibration, test = (data[split] for split in SPLITS)
    return Silo(name, domain, train, validation, calibration, test, indices, streams, subgroups, values)
