"""The rows of a silo that were used to test or calibrate a model, and are also held out in later federations.

`held-out.json` of a silo's state has keyed hashes of these rows.
"""

import hashlib
from collections import Counter
from functools import partial
from pathlib import Path

from ...core import DataError
from ...data import DataSettings
from ...data.held_out_again import HeldOut, again_held_out, contents, keyed
from ...data.raw_samples import Pool
from ...data.splits import Rearrange, Splits
from ...files import privately, record_of, write_record
from ...files.schema import SCHEMA, HeldOutFile, HeldOutRows

HELD_OUT = "held-out.json"
CHECK = b"the key of held-out.json"


def row_key(secret: int) -> bytes:
    """Return the key of hashes of rows, from the silo's secret."""
    return hashlib.sha256(f"rows {secret}".encode()).digest()


def rearranged_by(state: Path, settings: DataSettings, key: bytes) -> Rearrange | None:
    """Return a function that puts held-out rows back; None if there are none for the target column. Raises DataError if
    the file is damaged, or was written with another key."""
    known = _read(state, key)
    own = [_parsed(each) for each in known.rows if each.target == (settings.target or "")] if known is not None else []
    return partial(again_held_out, known=own, key=key) if own else None


def hold_out(state: Path, settings: DataSettings, pool: Pool, splits: Splits, key: bytes) -> None:
    """Record the rows of the test and calibration splits, in addition to the rows from earlier federations."""
    columns, target = tuple(sorted(column.name for column in pool.table)), settings.target or ""
    known = _read(state, key)
    entries = {(each.target, tuple(each.columns)): each for each in (known.rows if known is not None else ())}
    rows = keyed(contents(pool, columns), key)
    test, calibration = (Counter(rows[i] for i in splits[name].tolist()) for name in ("test", "calibration"))
    if (before := entries.get((target, columns))) is not None:
        # The maximum number of equal rows so far, because an equal row that was there before is the same row.
        old = _parsed(before)
        test |= old.test
        calibration |= old.calibration
    # Sorted, so the order of hashes reveals nothing about the order of rows.
    hashes = {
        "test": sorted(row.hex() for row in test.elements()),
        "calibration": sorted(row.hex() for row in calibration.elements()),
    }
    entries[target, columns] = HeldOutRows(target=target, columns=list(columns), **hashes)
    found = {"schema": SCHEMA, "key": _check(key), "rows": list(entries.values())}
    write_record(state / HELD_OUT, HeldOutFile.model_validate(found), lasting=True, opener=privately)


def _read(state: Path, key: bytes) -> HeldOutFile | None:
    known = record_of(state / HELD_OUT, HeldOutFile)
    if known is not None and known.key != _check(key):
        raise DataError(
            f"{state / HELD_OUT} was not written with the secret in {state / 'secret'}: restore the secret "
            "from a copy; without it, the held-out rows are unknown, and the silo continues only if you remove the file"
        )
    return known


def _parsed(rows: HeldOutRows) -> HeldOut:
    try:
        test, calibration = (Counter(map(bytes.fromhex, each)) for each in (rows.test, rows.calibration))
    except ValueError:
        raise DataError(f"{HELD_OUT}: expected hashes in hexadecimal digits; restore it from a copy") from None
    return HeldOut(tuple(rows.columns), test, calibration)


def _check(key: bytes) -> str:
    return keyed([CHECK], key)[0].hex()
