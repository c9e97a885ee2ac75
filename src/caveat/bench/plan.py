"""The plan of a board: the expected times of its missing cells."""

from collections.abc import Sequence
from statistics import fmean

from .. import api
from ..core import ConfigurationError
from ..core.text import duration
from ..runs.other_uncertainty import TRAINED
from ..terminal.tables import Heading, TextTable, text_table
from .cell_files import CellPlace, read_cell
from .federations import BoardFederation
from .make_cell import sources_of
from .running import Bench
from .settings import MAJORITY, POOLED


def plan_table(bench: Bench, workers: int) -> TextTable:
    """Return a table of the missing cells with their expected times, by federation.

    If there is no cell of the reference, its first cell is made and kept. Rehearsals give the training time of other
    rows relative to the reference; the rounds after training are assumed to take the same time per source and model.
    """
    reference = bench.settings.reference.partition("/")[0]
    for name in dict.fromkeys(place.federation for place in bench.missing()):
        first = CellPlace(name, reference, bench.seeds[0])
        if read_cell(bench.out, first) is None:
            bench.make_one(first)
    missing, rows, total = bench.missing(), [], 0.0
    for name in bench.federations:
        if todo := [place for place in missing if place.federation == name]:
            seconds = _seconds(bench, name, reference, todo)
            total += seconds
            rows.append((name, str(len(todo)), duration(seconds)))
    ends = ("all", str(len(missing)), duration(total))
    heads = [Heading("federation", words=True), Heading("cells"), Heading("time of one core")]
    caption = f"{duration(total / workers)} with {workers} workers, if there are as many free cores"
    return text_table(heads, [*rows, ends], "missing cells", caption, ends=[len(rows) - 1])


def _seconds(bench: Bench, name: str, reference: str, todo: Sequence[CellPlace]) -> float:
    """Return the expected seconds of the missing cells of a federation."""
    first = CellPlace(name, reference, bench.seeds[0])
    cell = read_cell(bench.out, first)
    if cell is None or cell.failed is not None:
        raise ConfigurationError(f"{first} failed, so the time of {name} cannot be estimated: {cell and cell.failed}")
    federation, members = bench.dealt(name, bench.seeds[0]), bench.settings.ensemble_size - 1
    train = cell.seconds["train"]
    asking = {s: spent - members * train * (s == "ensemble") for s, spent in cell.seconds.items() if s != "train"}
    usual, rehearsed, total = max(fmean(asking.values()), 0.0), _rehearsed(bench, federation, name, reference), 0.0
    for method in dict.fromkeys(place.method for place in todo):
        count = sum(place.method == method for place in todo)
        if method == MAJORITY:
            continue
        made, _, _ = bench.settings.method_of(method, name, federation.settings)
        own = train * _rehearsed(bench, federation, name, method) / rehearsed
        runs = len(sources_of(made)) * (1 + (made.policy != "always"))
        total += count * (own * (1 + members) + runs * usual * (1 + 0.5 * (len(made.models) - 1)))
    return total


def _rehearsed(bench: Bench, federation: BoardFederation, name: str, method: str) -> float:
    """Return the expected seconds of a training, from a rehearsal."""
    made, model, _ = bench.settings.method_of(method, name, federation.settings)
    silos = federation.pooled().silos if method == POOLED else federation.silos
    found = api.plan(silos, made, model=model, uncertainty=TRAINED, every=10**6, splits=["test"], n_silos=1)
    return fmean(found.methods[0].seconds)
