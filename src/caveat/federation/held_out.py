"""`held-out.json` of a silo's state: the rows that once tested or calibrated a model, by keyed hashes.

They are never trained on again, in no federation of the silo that predicts the same column.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from pathlib import Path

from ..core import DataError
from ..data import DataSettings
from ..data.pools import Pool
from ..data.splits import HeldOut, Rearrange, Splits, again_held_out, contents, keyed
from ..files.reading import record_of
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import HeldOutFile, HeldOutRows
from ..files.writing import privately, write_record

HELD_OUT = "held-out.json"
CHECK = b"the key of held-out.json"


def row_key(secret: int) -> bytes:
    """The key of hashes of rows, from the silo's secret."""
    return hashlib.sha256(f"rows {secret}".encode()).digest()


def rearranged_by(state: Path, settings: DataSettings, key: bytes) -> Rearrange | None:
    """What puts rows back that a silo once held out; None where there are none for the column to predict.

    Raises DataError if the file is damaged, or was written with another key.
    """
    known = _read(state, key)
    own = [_parsed(each) for each in known.rows if each.target == (settings.target or "")] if known is not None else []
    return partial(again_held_out, known=own, key=key) if own else None


def hold_out(state: Path, settings: DataSettings, pool: Pool, splits: Splits, key: bytes) -> None:
    """Write down which rows are tested and calibrated on now, beside those of earlier federations."""
    columns, target = tuple(sorted(column.name for column in pool.table)), settings.target or ""
    known = _read(state, key)
    entries = {(each.target, tuple(each.columns)): each for each in (known.rows if known is not None else ())}
    rows = keyed(contents(pool, columns), key)
    test, calibration = (Counter(rows[i] for i in splits[name].tolist()) for name in ("test", "calibration"))
    if (before := entries.get((target, columns))) is not None:
        # The most of equal rows that ever were: a row that was there before is not another one.
        old = _parsed(before)
        test |= old.test
        calibration |= old.calibration
    entries[target, columns] = HeldOutRows(
        target=target, columns=list(columns), test=_written(test), calibration=_written(calibration)
    )
    found = {"schema": SCHEMA, "key": _check(key), "rows": list(entries.values())}
    write_record(state / HELD_OUT, HeldOutFile.model_validate(found), lasting=True, opener=privately)


def _read(state: Path, key: bytes) -> HeldOutFile | None:
    known = record_of(state / HELD_OUT, HeldOutFile)
    if known is not None and known.key != _check(key):
        raise DataError(
            f"{state / HELD_OUT} was written with another secret than that of {state / 'secret'}: put the secret back "
            "from a copy; without it nobody can tell which rows were held out, and only without the file does the silo "
            "go on"
        )
    return known


def _parsed(rows: HeldOutRows) -> HeldOut:
    try:
        test, calibration = (Counter(map(bytes.fromhex, each)) for each in (rows.test, rows.calibration))
    except ValueError:
        raise DataError(f"{HELD_OUT}: expected hashes in hexadecimal digits; put it back from a copy") from None
    return HeldOut(tuple(rows.columns), test, calibration)


def _written(rows: Counter[bytes]) -> list[str]:
    """Hashes in an order that says nothing of the rows'."""
    return sorted(row.hex() for row in rows.elements())


def _check(key: bytes) -> str:
    return keyed([CHECK], key)[0].hex()
