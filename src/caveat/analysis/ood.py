"""Detection of out-of-distribution inputs by every score, for finished runs."""

import csv
import dataclasses
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import ConfigurationError, Decision, Prediction, Silo, key
from ..data import Inputs
from ..files import write_bytes
from ..runs.finished_run import Run, open_run
from ..terminal.tables import Heading, TextTable, text_table
from ..uncertainty.typicality import SCORE

LEVELS = (8, 24, 38, 76, 255)
"""Standard deviations of noise in gray levels; the range of pixels is 255."""
FAR_GREY, FAR_COLOR = 24, 38
"""Noise level from which an image counts as far, for one channel and for several."""
DISTANCES = (2, 5, 20)
"""Shifts of all columns of a table, in standard deviations; with 5 or more, a row counts as far."""
ONE_COLUMN = 10
"""Shift of the first column alone."""
NUMBERS = 10
"""Minimum number of distinct values of a numeric column."""
STREAMS = {"ood_global": "other data", "ood_local": "inputs of other silos"}
SHARES = (0.25, 0.5, 1.0)
"""Fractions of token ids that are replaced by others."""
MOST = 500
"""Maximum number of inputs of a silo."""


class Foreign(NamedTuple):
    """Out-of-distribution inputs of one kind, and whether they are far from the federation's data."""

    kind: str
    far: bool
    x: Tensor


def foreign(silo: Silo, seed: int) -> Iterator[Foreign]:
    """Return all kinds of out-of-distribution inputs of a silo; they depend on the seed, the kind and the silo only."""
    x = silo.test.x[:MOST]
    kinds = _images if x.ndim == 4 else _rows if x.is_floating_point() else _tokens
    yield from kinds(silo, x, seed)
    for name, stream in silo.streams.items():
        if len(stream):
            yield Foreign(STREAMS.get(name, name), name == "ood_global", stream.x[:MOST])


def _images(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    low, high = float(silo.train.x.min()), float(silo.train.x.max())
    far = FAR_GREY if x.shape[1] == 1 else FAR_COLOR
    noise = torch.randn(x.shape, generator=_generator(seed, "noise", silo))
    for level in LEVELS:
        yield Foreign(f"noise of {level}", level >= far, x + noise * (level / 255 * (high - low)))
    yield Foreign("pure noise", True, (low + high) / 2 + noise * (high - low) / 4)
    yield Foreign("black", True, torch.full_like(x, low))
    yield Foreign("white", True, torch.full_like(x, high))
    order = torch.randperm(x[0, 0].numel(), generator=_generator(seed, "shuffled", silo))
    yield Foreign("shuffled pixels", True, x.flatten(2)[:, :, order].view_as(x))
    yield Foreign("inverted", False, low + high - x)
    yield Foreign("blurred", False, F.avg_pool2d(x, 5, 1, 2, count_include_pad=False))
    side = max(1, x.shape[-1] // 5)
    yield Foreign("shifted", False, x.roll((side, side), (2, 3)))


def _rows(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    train = silo.train.x
    columns = [c for c in range(x.shape[1]) if len(torch.unique(train[:, c])) > NUMBERS] or list(range(x.shape[1]))
    deviation = train.std(0)
    signs = torch.randn(x.shape, generator=_generator(seed, "moved", silo)).sign()
    for distance in DISTANCES:
        moved = x.clone()
        moved[:, columns] += distance * signs[:, columns] * deviation[columns]
        yield Foreign(f"moved by {distance} sd", distance >= 5, moved)
    one = x.clone()
    one[:, columns[0]] += ONE_COLUMN * deviation[columns[0]]
    yield Foreign(f"one column by {ONE_COLUMN} sd", True, one)
    if len(columns) > 1:
        swapped = x.clone()
        swapped[:, columns[:2]] = x[:, [columns[1], columns[0]]]
        yield Foreign("columns swapped", False, swapped)


def _tokens(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    """Return sequences with random ids of the silo's training data, so the model's vocabulary covers them."""
    generator = _generator(seed, "tokens", silo)
    known = torch.unique(silo.train.x)
    other = known[torch.randint(len(known), x.shape, generator=generator)]
    for share in SHARES:
        replaced = torch.rand(x.shape, generator=generator) < share
        yield Foreign(f"{share:.0%} of ids replaced", share == 1, torch.where(replaced, other, x))
    yield Foreign("one id throughout", True, other[:, :1].expand_as(x).contiguous())
    order = torch.randperm(x.shape[1], generator=generator)
    yield Foreign("shuffled order", False, x[:, order])


def _generator(seed: int, purpose: str, silo: Silo) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, "foreign", purpose, silo.name))


OWN = "own test inputs"
"""The kind of in-distribution inputs."""
UNKNOWN = 1e9
"""Replacement of a NaN score: the least certain."""


@dataclass(frozen=True)
class Row:
    """Results for one kind of inputs and one score, means over a run's silos; a row of `ood.csv`."""

    federation: str
    method: str
    seed: int
    inputs: str
    far: bool
    score: str
    silos: int
    auroc: float | None
    """AUROC of out-of-distribution against own test inputs; None for own inputs."""
    worst_silo: float | None
    fpr95: float | None
    """Share of own inputs that are flagged if 95 % of the out-of-distribution inputs are flagged."""
    unfamiliar: float
    """Share of inputs called unfamiliar."""
    novel: float
    """Share of inputs called novel."""
    unsure: float
    """Share of inputs called unsure."""
    answered: float
    """Share of inputs answered."""
    wrong: float | None
    """Share of errors among answered own inputs; None for out-of-distribution inputs, which have no correct label, and
    for a quantity."""


class KindShares(NamedTuple):
    """Fractions of one kind of inputs at a silo, or their means over silos."""

    unfamiliar: float
    novel: float
    unsure: float
    answered: float
    wrong: float | None


def measure(run: Run, federation: str, seed: int) -> list[Row]:
    """Return a row per kind of inputs and score of a finished run; test labels only serve to count errors."""
    found: dict[tuple[str, bool, str], list[tuple[float, float]]] = defaultdict(list)
    about: dict[tuple[str, bool], list[KindShares]] = defaultdict(list)
    for silo in run.silos:
        predict = run.predictor(silo.name)
        of = silo.subgroups.get("test")
        own = predict(Inputs(silo.test.x[:MOST], subgroup=None if of is None else of[:MOST]))
        about[OWN, False].append(_shares(own, silo.test.y[:MOST] if own.target is None else None))
        for kind, far, x in foreign(silo, seed):
            told = predict(x)
            about[kind, far].append(_shares(told))
            for score in own.scores:
                found[kind, far, score].append(_separation(own.score(score), told.score(score)))
    method, silos = run.experiment.method.name, len(run.silos)
    rows = [
        Row(federation, method, seed, OWN, False, "", silos, None, None, None, **_mean(about[OWN, False])._asdict())
    ]
    for (kind, far, score), pairs in found.items():
        aurocs, rates = zip(*pairs, strict=True)
        figures = fmean(aurocs), min(aurocs), fmean(rates)
        rows.append(
            Row(federation, method, seed, kind, far, score, silos, *figures, **_mean(about[kind, far])._asdict())
        )
    return rows


def _mean(shares: Sequence[KindShares]) -> KindShares:
    wrong = [each.wrong for each in shares if each.wrong is not None]
    return KindShares(
        fmean(each.unfamiliar for each in shares),
        fmean(each.novel for each in shares),
        fmean(each.unsure for each in shares),
        fmean(each.answered for each in shares),
        fmean(wrong) if wrong else None,
    )


def _shares(found: Prediction, y: Tensor | None = None) -> KindShares:
    """Return the shares of a prediction, including errors among answered inputs for labels (N,)."""
    answered = found.decision != Decision.ABSTAIN
    wrong = None if y is None or not answered.any() else float((found.label != y)[answered].double().mean())
    alarms = found.is_unfamiliar, found.is_novel, found.is_unsure
    unfamiliar, novel, unsure, given = (float(each.double().mean()) for each in (*alarms, answered))
    return KindShares(unfamiliar, novel, unsure, given, wrong)


def _separation(own: Tensor, told: Tensor) -> tuple[float, float]:
    """Return AUROC and the FPR at 95 % TPR, with out-of-distribution inputs as positives."""
    from sklearn.metrics import roc_auc_score, roc_curve  # importing scikit-learn takes a second

    label = torch.cat([torch.zeros(len(own)), torch.ones(len(told))]).numpy()
    values = torch.cat([own, told]).double().nan_to_num(nan=UNKNOWN, posinf=UNKNOWN, neginf=-UNKNOWN).numpy()
    false, true, _ = roc_curve(label, values)
    return float(roc_auc_score(label, values)), float(false[(true >= 0.95).argmax()])


Cell = tuple[str, str, str, bool, str]
"""Federation, method, inputs, whether far, and score."""
Means = tuple[float | None, float, float, float]
"""AUROC, and the shares of inputs called unfamiliar, novel and unsure."""


def means(rows: Iterable[Row]) -> dict[Cell, Means]:
    """Return mean AUROC over seeds, None for own inputs, and mean shares of inputs by alarm."""
    cells: dict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        cells[row.federation, row.method, row.inputs, row.far, row.score].append(row)
    return {
        cell: (
            fmean(row.auroc or 0.0 for row in each) if cell[-1] else None,
            fmean(row.unfamiliar for row in each),
            fmean(row.novel for row in each),
            fmean(row.unsure for row in each),
        )
        for cell, each in cells.items()
    }


def prepare(out: Path) -> None:
    """Create the folder for results. Raises ConfigurationError if it cannot be created."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}") from error


def of_runs(folders: Sequence[Path]) -> list[Row]:
    """Measure finished runs, each as a separate federation."""
    rows: list[Row] = []
    for folder in folders:
        run = open_run(folder)
        rows += measure(run, str(folder), int(run.summary["seed"] or 0))
    return rows


def write(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Row)])
    for row in rows:
        writer.writerow(["" if value is None else value for value in dataclasses.astuple(row)])
    write_bytes(path, text.getvalue().encode())


def result_tables(rows: Sequence[Row]) -> list[TextTable]:
    """Return two tables per federation: the AUROC of familiarity and of the best other score per method, and alarms."""
    found = means(rows)
    shown = []
    for federation in dict.fromkeys(row.federation for row in rows):
        methods = list(dict.fromkeys(row.method for row in rows if row.federation == federation))
        kinds = dict.fromkeys((row.inputs, row.far) for row in rows if row.federation == federation)
        heads = [Heading("inputs", words=True, wraps=True), *(Heading(name, wraps=True) for name in methods)]
        for title, cell_of in ((f"AUROC of {SCORE} (best other score)", _auroc), (ALARMS, _alarms)):
            cells = []
            for kind, far in kinds:
                of_kind = (by_score(found, (federation, method, kind, far)) for method in methods)
                cells.append((f"{kind}{' *' if far else ''}", *map(cell_of, of_kind)))
            told = [row for row in cells if any(row[1:])]
            shown.append(
                text_table(heads, told, f"{federation}: {title}", "* far from all data of the federation", gap=2)
            )
    return shown


def by_score(found: Mapping[Cell, Means], of: tuple[str, str, str, bool]) -> dict[str, Means]:
    """Return the means of a federation, method and kind of inputs by score."""
    return {cell[-1]: value for cell, value in found.items() if cell[:-1] == of}


ALARMS = "% unfamiliar + % novel + % unsure"
"""Title of the table of alarms."""


def _auroc(by_score: Mapping[str, Means]) -> str:
    aurocs = {score: each[0] for score, each in by_score.items() if each[0] is not None}
    others = [value for score, value in aurocs.items() if score != SCORE]
    best = f" ({_short(max(others))})" if others else ""
    return f"{_short(aurocs[SCORE])}{best}" if SCORE in aurocs else best.strip()


def _alarms(by_score: Mapping[str, Means]) -> str:
    shares = next(iter(by_score.values()), None)
    return "" if shares is None else " + ".join(f"{100 * share:.0f}" for share in shares[1:] if share is not None)


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


__all__ = ["Row", "measure", "of_runs", "prepare", "result_tables", "write"]
