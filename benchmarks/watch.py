"""Measure false alarms and delays of `caveat watch` with the p-values of trained runs.

`inputs` takes a run of images with many test inputs: a silo's calibration and test inputs are its population, of which
n are calibrated on, again and again. The typicality of all others among them gives the distribution of the ranks of
inputs, and streams are drawn from it. Far inputs have the lowest rank. `columns` does so with rows of a run on tables.

CAVEAT_DATA=DIR python benchmarks/watch.py inputs RUN SILO
CAVEAT_DATA=DIR python benchmarks/watch.py columns RUN SILO COLUMN FACTOR
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import caveat
from caveat.core import Payload, SiloContext, State
from caveat.uncertainty import novelty, typicality
from caveat.uncertainty.monitoring import ColumnMonitor, KnownValues, RankMonitor
from caveat.uncertainty.statistical_tests import beta_quantile
from caveat.wrappers.alarms import GROUP, INPUT, ROWS, Familiar, distances, whose_stage
from caveat.wrappers.base import find

RATE, SIZES, FAR = 0.01, (20, 50, 200), 1000
BLOCK = 500
"""Inputs of all streams that are drawn at once."""
Array = NDArray[Any]


def ranked(run: caveat.Run, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n, S) log-distances and (n,) uncertainties of calibration and test inputs, as `typicality` takes them."""
    familiar = find(run.experiment.complete_method, Familiar)
    assert familiar is not None
    silo = run.silos.named(name)

    def of(down: Payload, state: State, context: SiloContext, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known, found = down[GROUP] | state[GROUP], familiar.observed(down, state, context, x)
        ((whose, answer),) = found.answers.items()
        model = whose.name.lower()
        stages = [s for s in found.numbers if whose_stage(s) in (INPUT, model) and f"{s}.whiten" in known]
        near = novelty.log_distances(known[f"{model}{ROWS}"], found.last[model])
        far = [distances(known, stage, found.numbers[stage]) for stage in stages]
        return torch.stack([*far, near], 1), answer.score(familiar.score)

    parts = torch.cat([silo.calibration.x, silo.test.x]).split(500)
    found = [of(*run.experiment.at(name), part) for part in parts]
    return torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


def distributions(run: caveat.Run, name: str, n: int, redraws: int) -> Array:
    """Return (redraws, n + 1) the shares of inputs with at most each rank, by draw of n calibration inputs."""
    far, scores = ranked(run, name)
    generator = torch.Generator().manual_seed(n)
    found = np.empty((redraws, n + 1))
    for k in range(redraws):
        order = torch.randperm(len(far), generator=generator)
        known, new = order[:n], order[n : n + 3000]
        p = typicality.typicality(far[known], scores[known], far[new], scores[new], novelty=True)
        ranks = (p * (n + 1)).round().long() - 1
        found[k] = np.cumsum(np.bincount(ranks.numpy(), minlength=n + 1)) / len(new)
    return found


def drawn(shares: Array, count: int, rng: np.random.Generator) -> Array:
    """Return (count, redraws) ranks."""
    u = rng.random((len(shares), count))
    found = np.stack([np.searchsorted(row[:-1], u[k], side="right") for k, row in enumerate(shares)], 1)
    return 1 + found


def first_alarms(shares: Array, inputs: int, rng: np.random.Generator, clean: int, share: float) -> Array:
    """Return (redraws,) the input of the first alarm, `inputs` + 1 without one; after `clean`, a share is far."""
    n = shares.shape[1] - 1
    monitor, first = RankMonitor(n, RATE, len(shares)), np.full(len(shares), inputs + 1)
    for start in range(0, inputs, BLOCK):
        ranks = drawn(shares, min(BLOCK, inputs - start), rng)
        far = (rng.random(ranks.shape) < share) & (start + np.arange(len(ranks))[:, None] >= clean)
        for t, each in enumerate(np.where(far, 1, ranks)):
            monitor.add(each)
            first = np.where((monitor.evidence >= 1 / RATE) & (first > inputs), start + t + 1, first)
        if share and (first <= inputs).all():
            break
    return first


def inputs(run: caveat.Run, name: str, redraws: int, most: int) -> None:
    print(
        "| calibration inputs | alarms without change | upper 95 % | delay, half far | found | delay, a tenth | found |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for n in SIZES:
        rng, shares = np.random.default_rng(n), distributions(run, name, n, redraws)
        false = int((first_alarms(shares, most, rng, most, 0.0) <= most).sum())
        bound = float(np.asarray(beta_quantile(0.95, false + 1, redraws - false)))
        cells = [f"{false} of {redraws}", f"{bound:.2%}"]
        for share in (0.5, 0.1):
            late = first_alarms(shares[:200], FAR + 2000, rng, FAR, share)
            ok = late > FAR  # the others are false alarms
            delay = np.median(late[ok] - FAR)
            cells += [f"{delay:.0f}", f"{(late[ok] <= FAR + 2000).mean():.1%}"]
        print(f"| {' | '.join([str(n), *cells])} |", flush=True)


def columns(run: caveat.Run, name: str, column: str, factor: float, redraws: int) -> None:
    encoder, rng = run.preparation.encoders[name], np.random.default_rng(0)
    names = [each.name for each in encoder.table]
    rows = caveat_rows(run, name)
    at, texts = names.index(column), np.array([each.categories is not None for each in encoder.table])
    rows[:, texts] = np.where(rows[:, texts] == -1, np.nan, rows[:, texts])
    print(f"{len(rows)} rows; {column} times {factor:g}")
    for clean in (0, 300):
        delays, right, false = [], [], 0
        for k in range(redraws):
            order = rng.permutation(len(rows))
            known, rest = rows[order[:60]], rows[order[60:]]
            present = [each[~np.isnan(each)] for each in known.T]
            watched = [KnownValues(tuple(np.sort(each)), len(known) - len(each)) for each in present]
            monitor, found = ColumnMonitor(watched, k), 0
            for t in range(clean + 200):
                row = rest[rng.integers(len(rest))].copy()
                row[at] *= factor if t >= clean else 1
                monitor.add(row)
                if monitor.evidence >= 1 / RATE:
                    found = t + 1
                    break
            if 0 < found <= clean:
                false += 1
                continue
            delays.append(found - clean if found else 10**6)
            right.append(int(monitor.by_column.argmax()) == at)
        delay = np.array(delays)
        soon = np.array(right) & (delay <= 10)
        print(f"after {clean}: median {np.median(delay):.0f}, within 10 rows with this column {soon.mean():.1%}, "
              f"this column {np.mean(right):.1%}, false alarms before {false} of {redraws}", flush=True)  # fmt: skip


def caveat_rows(run: caveat.Run, name: str) -> Array:
    """Return (N, D) the raw rows of a silo's table."""
    from caveat.data.sources.base import locate
    from caveat.data.sources.tables import rows_of
    from caveat.data.tables.files import read_sheet

    encoder = run.preparation.encoders[name]
    sheet = read_sheet(locate(f"{name}.csv"), encoder.csv_format.of(name).separator)
    return np.asarray(rows_of(sheet, encoder.table, encoder.csv_format, name), np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("inputs", "columns"))
    parser.add_argument("run", type=Path)
    parser.add_argument("silo")
    parser.add_argument("column", nargs="?", default="chol")
    parser.add_argument("factor", nargs="?", type=float, default=1 / 38.67)
    parser.add_argument("--redraws", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=10**5)
    given = parser.parse_args()
    run = caveat.load(given.run)
    if given.what == "inputs":
        inputs(run, given.silo, given.redraws, given.inputs)
    else:
        columns(run, given.silo, given.column, given.factor, min(given.redraws, 200))


if __name__ == "__main__":
    main()
