"""Test tables as a whole: how often a batch of rows is reported as unlike the silo's own, with and without other units.

    CAVEAT_DATA=DIR python benchmarks/batches.py [--draws 150]

Rows of a hospital of UCI heart disease are drawn without replacement: 30, 60 or 100 that the silo stores, and batches
of 5 to 200 from the others. A batch is unchanged, or one column is converted. "found" is the fraction of batches in
which the converted column is reported; "false" is the fraction of unchanged batches in which any column is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from caveat.data.raw_samples import Array
from caveat.data.settings import DataSettings
from caveat.data.sources import parsed
from caveat.data.tables.drift_reference import reference_of
from caveat.data.tables.reading_settings import TableColumn

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
UNITS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "chol": ("mg/dl to mmol/l", lambda x: x / 38.67),
    "trestbps": ("mmHg to kPa", lambda x: x * 0.1333),
    "age": ("years to months", lambda x: 12 * x),
    "thalach": ("per minute to per second", lambda x: x / 60),
    "oldpeak": ("mm to cm", lambda x: x / 10),
}


def read(hospital: str) -> tuple[Array, tuple[TableColumn, ...]]:
    """Return all rows of a hospital, and its columns."""
    settings = DataSettings(source=f"csv:uci_heart_{hospital}.csv", target="disease")
    (pool,) = (pool for part in parsed(settings.source) for pool in part.read(settings).pools)
    return np.asarray(pool.x), pool.table


def found(rows: Array, table: tuple[TableColumn, ...], kept: int, size: int, draws: int, column: str = "") -> float:
    """The share of batches in which that column is reported, or any if none is changed."""
    random, names, hits = np.random.default_rng([kept, size]), [each.name for each in table], 0
    for _ in range(draws):
        order = random.permutation(len(rows))
        batch = rows[order[kept : kept + size]].copy()
        if column:
            i = names.index(column)
            batch[:, i] = UNITS[column][1](batch[:, i])
        said = [each.name for each in reference_of(rows[order[:kept]], table, random).unlike(batch, table)]
        hits += column in said if column else bool(said)
    return hits / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=150)
    draws = parser.parse_args().draws
    assert Path(os.environ["CAVEAT_DATA"]).is_dir()
    print(f"{', '.join(f'{name} {unit}' for name, (unit, _) in UNITS.items())}\n")
    print(f"| hospital | stored rows | rows per batch | false | {' | '.join(UNITS)} |")
    print(f"| --- | ---: | ---: | ---: |{' ---: |' * len(UNITS)}")
    for hospital in HOSPITALS:
        rows, table = read(hospital)
        for kept, size in [(30, 5), (30, 20), (30, 50), (100, 50), (100, 180)]:
            if kept + size > len(rows):
                continue
            known = [each.name for each in table]
            shares = [found(rows, table, kept, size, draws)]
            shares += [found(rows, table, kept, size, draws, name) if name in known else np.nan for name in UNITS]
            print(f"| {hospital} | {kept} | {size} | {' | '.join(f'{each:.3f}' for each in shares)} |", flush=True)


if __name__ == "__main__":
    main()
