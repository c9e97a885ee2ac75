"""The plan of a board: the expected times of its missing cells."""

from collections import Counter
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

    A method's missing cells are assumed to take as long as its existing cells of the federation. If there is no cell of
    the reference, its first cell is made and kept. For methods without cells, rehearsals give the training time
    relative to the reference; the rounds after training are assumed to take the same time per source and model.
    """
    reference = bench.settings.reference.partition("/")[0]
    missing, rows, total = bench.missing(), [], 0.0
    firsts = [place for place in missing if (place.method, place.seed) == (reference, bench.seeds[0])]
    for place in firsts:
        bench.make_one(place)
        missing.remove(place)
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
    counts = Counter(place.method for place in todo if place.method != MAJORITY)
    measured = {method: fmean(found) for method in counts if (found := _measured(bench, name, method))}
    others = [method for method in counts if method not in measured]
    seconds = measured | _expected(bench, name, reference, others)
    return sum(count * seconds[method] for method, count in counts.items())


def _measured(bench: Bench, name: str, method: str) -> list[float]:
    """Return the seconds of the method's existing cells."""
    cells = [read_cell(bench.out, CellPlace(name, method, seed)) for seed in bench.seeds]
    return [sum(cell.seconds.values()) for cell in cells if cell is not None and cell.failed is None]


def _expected(bench: Bench, name: str, reference: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the expected seconds of a cell of each method, from rehearsals and the first cell of the reference."""
    if not methods:
        return {}
    first = CellPlace(name, reference, bench.seeds[0])
    cell = read_cell(bench.out, first)
    if cell is None or cell.failed is not None:
        raise ConfigurationError(f"{first} failed, so the time of {name} cannot be estimated: {cell and cell.failed}")
    federation, members = bench.dealt(name, bench.seeds[0]), bench.settings.ensemble_size - 1
    train = cell.seconds["train"]
    asking = {s: spent - members * train * (s == "ensemble") for s, spent in cell.seconds.items() if s != "train"}
    usual, rehearsed, found = max(fmean(asking.values()), 0.0), _rehearsed(bench, federation, name, reference), {}
    for method in methods:
        made, _, _ = bench.settings.method_of(method, name, federation.settings)
        own = train * _rehearsed(bench, federation, name, method) / rehearsed
        runs = len(sources_of(made)) * (1 + (made.policy != "always"))
        found[method] = own * (1 + members) + runs * usual * (1 + 0.5 * (len(made.models) - 1))
    return found


def _rehearsed(bench: Bench, federation: BoardFederation, name: str, method: str) -> float:
    """Return the expected seconds of a training, from a rehearsal."""
    made, model, _ = bench.settings.method_of(method, name, federation.settings)
    silos = federation.pooled().silos if method == POOLED else federation.silos
    found = api.plan(silos, made, model=model, uncertainty=TRAINED, every=10**6, splits=["test"], n_silos=1)
    return fmean(found.methods[0].seconds)
