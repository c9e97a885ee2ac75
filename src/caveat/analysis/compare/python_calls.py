"""Comparisons of methods from Python, with the same tables and page as from the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core import CaveatError, ConfigurationError, Method
from ...core.errors import short_repr
from ...data import Silos
from ...files import nothing_begun, read_comparison, write_bytes
from ...files.schema import Comparison, MethodVariant, Setting
from ...metrics.custom_metrics import OwnMetric, given_metrics
from ...runs.finished_run import Run
from ...runs.progress import Progress
from .compared_run import FinishedRun, inputs_file
from .folder import ComparisonFolder
from .grid import Grid, PlannedRun, check_alike, slug, with_own
from .per_input import write_inputs
from .runner import write

Make = Callable[[int], Silos]
"""Maps a seed to the silos of all runs with this seed."""


@dataclass(frozen=True)
class CalledGrid(Grid):
    """A comparison of method objects, under the settings of one call."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    """The method of each row."""

    def method_of(self, method: MethodVariant) -> str:
        return self.kinds[method.name]


class CalledComparison(ComparisonFolder):
    """The folder of a comparison from Python."""

    def done(self, run: PlannedRun) -> FinishedRun | None:
        place = self.place(run)
        if (place, None) not in self._found and (place / "summary.json").exists():
            self._found[place, None] = FinishedRun(place)
        return self._found.get((place, None))


def compare_calls(
    run: Callable[..., Run],
    check: Callable[..., object],
    silos: Silos | Make,
    methods: Mapping[str, Method],
    seeds: Sequence[int],
    folder: Path,
    progress: Progress,
    arguments: Mapping[str, Any],
) -> Comparison:
    """Execute the missing runs of a comparison with `run`; write its tables and its page, and return the tables.

    `check` takes the same arguments as `run` and raises for invalid ones. If a run fails, its error is recorded and
    the others continue. Raises ConfigurationError or DataError for an invalid comparison, before anything runs.
    """
    made = {seed: silos(seed) if callable(silos) else silos for seed in dict.fromkeys(seeds)}
    targets = [getattr(each, "target", None) for each in made.values()]
    kind = check_alike("classes" if target is None else target.predicts for target in targets) if made else "classes"
    grid = grid_of_calls(methods, seeds, given_metrics(arguments.get("metrics") or {}), kind)
    results = CalledComparison(grid, folder)
    if not (folder / "comparison.json").exists() and not nothing_begun(folder):
        raise ConfigurationError(f"out = {str(folder)!r} exists and is not a comparison; choose a new folder", "out")
    for seed in grid.seeds:
        for name, asked in methods.items():
            _check(check, name, made[seed], asked, seed, arguments)
    progress.begin(grid.title, len(methods) * len(grid.seeds))
    try:
        for number, (setting, method, seed) in enumerate(grid.places(), 1):
            planned = grid.at(method, setting, seed, ())
            why = _carried_out(run, made[seed], methods[method.name], seed, results.place(planned), arguments)
            if why:
                write_bytes(results.note_of_failure(planned), why.encode())
                progress.note(f"{planned.title} failed: {why.splitlines()[-1]}")
            else:
                results.note_of_failure(planned).unlink(missing_ok=True)
            progress.round(number, planned.title, {})
            write(results)
    finally:
        progress.end()
    return read_comparison(folder)


def _check(
    check: Callable[..., object], name: str, silos: Silos, method: Method, seed: int, arguments: Mapping[str, Any]
) -> None:
    """Raise ConfigurationError, naming the row, or DataError for an invalid run."""
    try:
        check(silos, method, seed=seed, **arguments)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}", error.key) from None


def _carried_out(
    run: Callable[..., Run], silos: Silos, method: Method, seed: int, place: Path, arguments: Mapping[str, Any]
) -> str:
    """Execute or continue one run; return its error if it fails. Raises ConfigurationError for an invalid call, and for
    a folder with another run."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = run(silos, method, seed=seed, out=place, **arguments)
        if not inputs_file(place).exists():
            write_inputs(done, silos)
    except ConfigurationError:
        raise
    except CaveatError as error:
        return str(error)
    return ""


def grid_of_calls(
    methods: Mapping[str, Method], seeds: Sequence[int], metrics: Sequence[OwnMetric] = (), predicts: str = "classes"
) -> CalledGrid:
    """Return the comparison of methods by row name. Raises ConfigurationError for invalid methods or seeds."""
    if not isinstance(methods, Mapping) or not methods:
        raise ConfigurationError(
            f"methods = {short_repr(methods)}: expected a mapping from names to methods", "methods"
        )
    for name, method in methods.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(method, Method):
            raise ConfigurationError(
                f"methods[{short_repr(name)}] = {short_repr(method)}: expected a name and a method such as "
                "caveat.FedAvg()",
                "methods",
            )
    rows = tuple(MethodVariant(name, ()) for name in methods)
    grid = CalledGrid(
        title=", ".join(methods), rows=rows, columns=(Setting(),), seeds=tuple(seeds),
        command="caveat.compare in Python", kinds={name: method.name for name, method in methods.items()},
        measures=with_own(metrics, predicts),
    )  # fmt: skip
    short = [slug(name) for name in methods]
    if doubled := [name for name in methods if short.count(slug(name)) > 1]:
        raise ConfigurationError(f"more than one row would use the folder {slug(doubled[0])!r}; rename one", "methods")
    if len(set(grid.seeds)) < len(grid.seeds) or not grid.seeds:
        raise ConfigurationError(
            f"seeds = {short_repr(list(seeds))}: expected one or more seeds, all different", "seeds"
        )
    return grid
