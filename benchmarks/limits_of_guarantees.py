"""Simulate what guarantees do not cover: frequent records that are moved together, pooled subgroups, repeated tables.

    python benchmarks/limits_of_guarantees.py            # one minute on one core

`duplicates`: how often a bound of 5 % errors at 90 % confidence is violated (at most 10 % is guaranteed) if a share of
a silo's rows are frequent records, some of which are always wrong, with and without moving equal rows together.
`subgroups`: the rate of alarms (5 %) and of sets that miss the true class (10 %), over all inputs of a silo and for a
small subgroup that is harder than the other one. `tables`: how often a table like the silo's own has a warning about a
column (5 %), and the fraction of silos for which most tables have one. Rates are followed by 95 % intervals.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from caveat.data.raw_samples import Pool
from caveat.data.settings import Split
from caveat.data.splits import development_splits, reserve_test, together
from caveat.data.tables.drift_reference import reference_of
from caveat.data.tables.reading_settings import TableColumn
from caveat.uncertainty import mondrian, sets, typicality
from caveat.uncertainty.selective_risk import fixed_sequence, policy_counts
from caveat.uncertainty.statistical_tests import wilson

SPLIT = Split()
DRAWS = 300


def duplicates(rows: int, share: float, records: int, wrong_share: float, moved: bool) -> None:
    """A share of inputs is one of `records` equally frequent records; inputs that are wrong are the most uncertain."""
    draw, violated = np.random.default_rng(2), 0
    for _ in range(DRAWS):
        wrong_record = draw.permutation(records) < round(wrong_share * records)
        record = np.where(draw.random(rows) < share, draw.integers(records, size=rows), -1)
        x = draw.normal(size=(rows, 3)).astype(np.float32)
        x[record >= 0] = record[record >= 0, None]
        y = np.where(record >= 0, record % 2, draw.integers(2, size=rows))
        development, test = reserve_test(rows, SPLIT.test, draw)
        parts = development_splits(len(development), SPLIT, "a", draw)
        splits = {name: development[index] for name, index in parts.items()} | {"test": test}
        if moved:
            splits = dict(together(Pool(x=x, y=y, classes=("a", "b"), domain="a"), splits))
        own = record[splits["calibration"]]
        wrong = torch.from_numpy((own >= 0) & wrong_record[own])
        rank = torch.where(wrong, 1.0, torch.from_numpy(np.ceil(99 * draw.random(len(own))).clip(1) / 100))
        found = fixed_sequence(policy_counts(None, rank, None, wrong), 0.05, 0.9, total=len(own))
        violated += found.limit == 1.0 and share * wrong_record.mean() > 0.05
    low, high = wilson(violated, DRAWS)
    kept = "moved together" if moved else "drawn"
    print(f"{rows:,} rows, {records} records, {kept}: violated {violated / DRAWS:.3f} [{low:.3f}, {high:.3f}]")


def small_subgroup(inputs: int, small: float, alarms: bool) -> None:
    """The small subgroup has higher scores than the other one; both are pooled if one has too few inputs."""
    draw, least = np.random.default_rng(4), 19 if alarms else 9
    every, own = [], []
    for _ in range(10 * DRAWS):
        of = (draw.random(inputs) < small).astype(int)
        scores = torch.from_numpy(draw.random(inputs) + of)
        pool = mondrian.pools(torch.bincount(torch.from_numpy(of), minlength=2), least)
        row = pool[torch.from_numpy(of)]
        rates = []
        for k in range(2):
            new, mine = torch.from_numpy(draw.random(200) + k), scores[row == pool[k]]
            missed = typicality.sureness(mine, new) <= 0.05 if alarms else new > sets.threshold(mine, 0.9)
            rates.append(float(missed.double().mean()))
        every.append((1 - small) * rates[0] + small * rates[1])
        own.append(rates[1])
    told = [f"{np.mean(each):.4f} ± {1.96 * np.std(each) / math.sqrt(len(each)):.4f}" for each in (every, own)]
    what = "alarms" if alarms else "missed by sets"
    print(f"{inputs} inputs, {small:.1%} in the small subgroup, {what}: all inputs {told[0]}, this subgroup {told[1]}")


def tables(stored: int, rows: int) -> None:
    """One column of normal numbers, the same stored rows for five tables of each silo."""
    draw, rates = np.random.default_rng(5), []
    table = (TableColumn("a", None),)
    for _ in range(DRAWS):
        known = reference_of(draw.normal(size=(stored, 1)).astype(np.float32), table, draw)
        rates.append(np.mean([bool(known.unlike(draw.normal(size=(rows, 1)), table)) for _ in range(5)]))
    error = 1.96 * np.std(rates) / math.sqrt(DRAWS)
    most = np.mean(np.array(rates) > 0.5)
    print(f"{stored} stored rows, tables of {rows:,}: {np.mean(rates):.3f} ± {error:.3f}; most tables at {most:.1%}")


def main() -> None:
    torch.set_num_threads(1)
    for moved in (True, False):
        for given in ((1000, 0.08, 10, 0.7), (2000, 0.08, 24, 0.66), (3000, 0.07, 30, 0.75)):
            duplicates(*given, moved)
    for inputs, small in ((199, 0.095), (119, 0.16), (199, 0.07)):
        small_subgroup(inputs, small, True)
    for inputs, small in ((79, 0.11), (99, 0.1), (59, 0.15)):
        small_subgroup(inputs, small, False)
    for stored in (20, 100):
        tables(stored, 2000)


if __name__ == "__main__":
    main()
