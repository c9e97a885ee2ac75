"""The plan of a comparison: methods and variants, settings and seeds, also from the options of `caveat compare`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...config import Config, find, is_unavailable, load
from ...config.load import check_key
from ...config.toml import senseless, toml
from ...core import ConfigurationError
from ...core.errors import cut, one_of
from ...core.settings import check_seed
from ...data.sources import parsed
from ...files.schema import MEASURES, GridFile, Measure, MethodVariant, Sets, Setting, TuningPlan, predicted
from ...methods import METHODS
from ...methods.plugins import advice
from ...metrics.custom_metrics import OwnMetric, check_known, known_metrics
from ...runs.user_code import import_named

DECIDING = {
    "classes": ("accuracy", "nll", "brier", "ece", "auroc_error", "aurc", "augrc", "coverage"),
    "quantity": ("crps", "mae", "rmse", "interval_width"),
    "time": ("integrated_brier",),
}
"""Metrics for contrasts: one direction is better, and values per input are stored."""
OWN = "metrics"
"""The path of custom metrics in a silo's record."""
LONGEST = 100
"""Maximum length of a folder's name, approximately, in bytes."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a method under a setting with a seed, and with one of the values tried in tuning."""

    method: MethodVariant
    setting: Setting
    seed: int
    tuned: Sets = ()

    @property
    def title(self) -> str:
        where = ", ".join(part for part in (self.setting.name, f"seed {self.seed}", *self.tuned) if part)
        return f"{self.method.name} ({where})"

    @property
    def folder(self) -> str:
        """The run's folder, relative to the comparison's folder."""
        parts = (self.setting.name, self.method.name, *self.tuned, f"seed-{self.seed}")
        return "/".join(["runs", *(slug(part) for part in parts if part)])

    def config(self, rounds: int | None = None) -> Config:
        """Return the run's configuration. Raises ConfigurationError that names the method and the setting."""
        more = () if rounds is None else (f"rounds={rounds}",)
        sets = [*self.setting.sets, *self.method.sets, *self.tuned, *more, f"seed={self.seed}", "baselines=[]"]
        try:
            config = load(self.setting.recipe, [*sets, "engine.workers=1"])
            if is_unavailable(config.method.name) or config.method.name == _method_of(
                self.setting.recipe, self.setting.sets
            ):
                return config
            # Settings of the recipe without effect on another method are dropped; those of the variant are kept.
            asked = [key.split(".")[1] for key in map(key_of, self.method.sets) if key.startswith("uncertainty.")]
            kept = {name: getattr(config.uncertainty, name) for name in asked}
            fitting = config.uncertainty.fitting(config.build_method())
            return dataclasses.replace(config, uncertainty=dataclasses.replace(fitting, **kept))
        except ConfigurationError as error:
            lines = (f"{self.method.name}{' in ' if self.setting.name else ''}{self.setting.name}: {line}"
                     for line in str(error).splitlines())  # fmt: skip
            raise ConfigurationError("\n".join(lines)) from None


def with_own(metrics: Sequence[OwnMetric], predicts: str) -> tuple[Measure, ...]:
    """Return the usual measures of what is predicted, and the custom metrics."""
    own = (Measure(each.name, f"{OWN}/{each.name}", higher=each.higher_is_better) for each in metrics)
    return (*MEASURES[predicts], *own)


def predicts(config: Config) -> str:
    """Return what a configuration predicts: classes, a quantity or a time."""
    return config.data.predict or parsed(config.data.source)[0].predicts


def check_alike(kinds: Iterable[str]) -> str:
    """Return what all runs predict. Raises ConfigurationError for runs that predict different kinds."""
    first, *others = sorted(set(kinds))
    if others:
        text = f"some runs predict {first!r} and others {others[0]!r}, two kinds without common metrics"
        raise ConfigurationError(f"data.predict: {text}; compare them separately", "data.predict")
    return first


@dataclass(frozen=True)
class Grid(GridFile):
    """The plan of a comparison."""

    def check(self) -> None:
        """Check the plan; raise ConfigurationError with a line per problem."""
        for kind, names in (("row", [method.name for method in self.rows]), ("column", [c.name for c in self.columns])):
            slugs = [slug(name) for name in names]
            if doubled := [name for name, short in zip(names, slugs, strict=True) if slugs.count(short) > 1]:
                raise ConfigurationError(f"more than one {kind} would use the folder {slug(doubled[0])!r}; rename one")
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds:
            raise ConfigurationError(f"seeds = {list(self.seeds)}: expected one or more seeds, all different")
        if self.match_rounds and self.match_rounds not in [method.name for method in self.rows]:
            rows = ", ".join(method.name for method in self.rows)
            raise ConfigurationError(f"match_rounds = {self.match_rounds!r}: no such row; rows: {rows}")
        self._check_rows()
        self._check_tuning()
        self._check_contrasts()
        problems = []
        firsts = [(setting, method) for setting in self.columns for method in self.rows]
        trials = [run for setting, row in firsts for run in self.tried(row, setting) or [self.first(row, setting)]]
        trials += [run for setting, method in firsts for run in self._refined(method, setting)]
        others = [PlannedRun(self.rows[0], self.columns[0], seed) for seed in self.seeds]
        for run in (*trials, *others):
            try:
                run.config()
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("\n".join(problems))
        check_alike(predicts(self.first(self.rows[0], setting).config()) for setting in self.columns)

    def _check_rows(self) -> None:
        for method in self.rows:
            for each in method.sets:
                if _is_shared(key_of(each)):
                    text = "rows are compared on the same data, silos and seeds; settings of the data belong in columns"
                    raise ConfigurationError(f"row {method.name!r} sets {each}: {text}")
                if key_of(each) in self.swept:
                    raise ConfigurationError(f"row {method.name!r} sets {each}, which is also swept")
                if key_of(each) == "rounds" and self.match_rounds not in ("", method.name):
                    text = f"its rounds must equal those of {self.match_rounds}"
                    raise ConfigurationError(f"row {method.name!r} sets {each}, but {text}")
            if self.tuning and method.values and len(method.values) != len(self.tuning.values):
                numbers = f"{len(method.values)} values of {self.tuning.key}, the others {len(self.tuning.values)}"
                raise ConfigurationError(f"row {method.name!r} tries {numbers}; every row must try the same number")

    def _check_tuning(self) -> None:
        if self.tuning is None:
            return
        key = self.tuning.key
        if _is_shared(key):
            raise ConfigurationError(f"{key} cannot be tuned: rows are compared on the same data, silos and seeds")
        if key in self.swept:
            raise ConfigurationError(f"{key} is both tuned and swept; choose one")
        for method in self.rows:
            for tuned in (key, *([method.then.key] if method.then else [])):
                if tuned in map(key_of, method.sets):
                    raise ConfigurationError(f"{tuned} is tuned, but row {method.name!r} sets it")
        if shared := set(self.tuning.on) & set(self.seeds):
            raise ConfigurationError(f"seed {min(shared)} is used both in the table and for tuning; choose others")

    def _check_contrasts(self) -> None:
        rows, columns = [method.name for method in self.rows], [setting.name for setting in self.columns]
        for each in self.contrasts:
            for of, name, known in (("row", each.a, rows), ("row", each.b, rows), ("column", each.column, columns)):
                if name not in known:
                    raise ConfigurationError(f"contrast {each.claim!r}: no {of} {name!r}; {of}s: {', '.join(known)}")
            kind = predicted(self.measures)
            if not 0 < each.margin < (1 if kind == "classes" else math.inf):  # margins of a quantity are in its unit
                below = " < 1" * (kind == "classes")
                raise ConfigurationError(f"contrast {each.claim!r}: margin {each.margin}; expected 0 < margin{below}")
            if each.figure not in DECIDING[kind] or (each.known is not None and each.figure != "accuracy"):
                one = f"one of {', '.join(DECIDING[kind])}"
                expected = one if each.known is None else "accuracy, with `known`"
                raise ConfigurationError(f"contrast {each.claim!r}: figure {each.figure!r}; expected {expected}")

    def led_by(self, metric: str) -> Grid:
        """Return the same comparison with this metric first, for the verdict. Raises ConfigurationError without it."""
        names = [measure.name for measure in self.measures]
        if metric not in names:
            raise ConfigurationError(f"--metric {cut(metric, 100)}: no such metric{one_of(metric, names)}")
        return replace(self, measures=tuple(sorted(self.measures, key=lambda measure: measure.name != metric)))

    def values(self, method: MethodVariant) -> tuple[Any, ...]:
        """Return the values that a method tries; empty without tuning."""
        return (method.values or self.tuning.values) if self.tuning else ()

    def method_of(self, method: MethodVariant) -> str:
        """Return the name of a row's method."""
        return self.first(method, self.columns[0]).config().method.name

    @property
    def judged(self) -> str:
        """The model whose metric decides."""
        return self.tuning.model if self.tuning else ""

    def first(self, method: MethodVariant, setting: Setting) -> PlannedRun:
        """Return a method's first run under a setting."""
        return next(iter(self.tried(method, setting)), PlannedRun(method, setting, self.seeds[0]))

    def _refined(self, method: MethodVariant, setting: Setting) -> list[PlannedRun]:
        """Return runs with the values of a method's own key, and with the first value of the plan's key."""
        first, then = self.first(method, setting), method.then
        return [replace(first, tuned=(*first.tuned, f"{then.key}={toml(v)}")) for v in then.values] if then else []

    def tried(self, method: MethodVariant, setting: Setting) -> list[PlannedRun]:
        """Return the runs of tuning in the order of the values; empty without tuning."""
        return [run for _, runs in self.trials(method, setting) for run in runs]

    def trials(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Return every value that tuning compares from the start, with its runs."""
        return [(value, self.tries(method, setting, (self.override(value),))) for value in self.values(method)]

    def tries(self, method: MethodVariant, setting: Setting, tuned: Sets) -> list[PlannedRun]:
        """Return the runs that try one value."""
        return [PlannedRun(method, setting, seed, tuned) for seed in self.seeds_tried]

    @property
    def seeds_tried(self) -> tuple[int, ...]:
        """The seeds on which tuning tries values."""
        return (self.tuning.on or self.seeds[: self.tuning.seeds]) if self.tuning else ()

    def override(self, value: Any) -> str:
        """Return the override that sets a tuned value. Raises LookupError without tuning."""
        if self.tuning is None:
            raise LookupError("a grid without tuning sets no value")
        return f"{self.tuning.key}={toml(value)}"

    def places(self) -> Iterator[tuple[Setting, MethodVariant, int]]:
        """Yield every cell of the table, ordered by setting, seed and method."""
        for setting in self.columns:
            for seed in self.seeds:
                for method in self.rows:
                    yield setting, method, seed

    def at(self, method: MethodVariant, setting: Setting, seed: int, chosen: Sets) -> PlannedRun:
        """Return a run of the table with the chosen value."""
        return PlannedRun(method, setting, seed, chosen)


def slug(name: str) -> str:
    """Return a name that is valid for a folder."""
    short = re.sub(r"[^\w.=+-]+", "-", name.strip()).strip("-.") or "-"
    if len(short.encode()) <= LONGEST:
        return short
    return f"{short.encode()[:LONGEST].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@functools.cache
def _method_of(recipe: str | None, sets: Sets) -> str:
    return load(recipe, sets).method.name


def key_of(setting: str) -> str:
    """Return the key of "SECTION.KEY=VALUE"."""
    return setting.partition("=")[0].strip()


def _is_shared(key: str) -> bool:
    """Return whether a key must have the same value for all methods."""
    return key.split(".")[0] in ("data", "seed") or key in ("evaluation.n_silos", "federation.newcomers")


def swept(columns: Sequence[Setting], sweeps: Mapping[str, Sequence[Any]]) -> tuple[Setting, ...]:
    """Return a copy of the settings for every combination of the keys' values."""
    found = tuple(columns)
    ends = [key.split(".")[-1] for key in sweeps]
    for key, values in sweeps.items():
        end = key.split(".")[-1]
        label = key if ends.count(end) > 1 else end
        found = tuple(
            replace(setting, name=", ".join(filter(None, (setting.name, f"{label}={toml(value)}"))),
                    sets=(*setting.sets, f"{key}={toml(value)}"))
            for setting in found
            for value in values
        )  # fmt: skip
    return found


MOST_RUNS = 10_000
"""Maximum number of runs of a comparison."""


def asked(
    source: str | None,
    methods: str | None,
    variants: Sequence[str],
    seeds: str,
    sets: Sequence[str],
    sweeps: Sequence[str],
    tune: str | None,
    tune_seeds: int,
    match_rounds: str | None,
) -> Grid:
    """Build a comparison from options. Raises ConfigurationError that names the option."""
    config = load(source, sets)
    import_named(config)
    check_known(config.evaluation.metrics)
    if methods is not None and not methods.strip():
        raise ConfigurationError("--methods: expected comma-separated names, for instance fedavg,uefl")
    names = methods.split(",") if methods else [] if variants else [config.method.name, *config.baselines]
    rows = [MethodVariant(name.strip(), (f"method.name={name.strip()}",)) for name in names]
    for method in rows:
        if method.name not in METHODS:
            about = f"no such method {cut(method.name, 100)!r}; `caveat list methods` shows all; {advice(method.name)}"
            raise ConfigurationError(f"--methods {cut(str(methods), 100)}: {about}")
    rows += map(_variant, variants)
    tuning = TuningPlan(*_values("--tune", tune), seeds=tune_seeds) if tune else None
    if tune_seeds > (most := len(seeds_of(seeds)) if tune else 1):
        text = f": expected at most {most}, the number of seeds in --seeds" if tune else " has no effect without --tune"
        raise ConfigurationError(f"--tune-seeds {tune_seeds}{text}")
    swept_values = dict(pairs := [_values("--sweep", sweep) for sweep in sweeps])
    if len(swept_values) < len(pairs):
        raise ConfigurationError(f"--sweep: a key is listed twice among {', '.join(key for key, _ in pairs)}")
    for key in (*map(key_of, sets), *swept_values):
        if key in ("seed", "baselines"):
            raise ConfigurationError(f"{key} cannot be set or swept in a comparison; use --seeds or --methods")
    check_size(rows, seeds_of(seeds), swept_values, tuning)
    columns = swept([Setting("", source, tuple(sets))], swept_values)
    for run in [PlannedRun(row, column, 0) for column in columns for row in rows]:
        if any(key_of(each).split(".")[0] in ("model", "personal") for each in (*run.setting.sets, *run.method.sets)):
            import_named(run.config())  # the user typed the names of this code
    return Grid(
        title=f"{find(source).stem}: {', '.join(row.name for row in rows)}",
        rows=tuple(rows),
        columns=columns,
        seeds=seeds_of(seeds),
        tuning=tuning,
        match_rounds=match_rounds or "",
        swept=tuple(swept_values),
        measures=with_own(known_metrics(config.evaluation.metrics), predicts(config)),
    )


def check_size(
    rows: Sequence[MethodVariant], seeds: Sequence[int], swept: Mapping[str, Sequence[Any]], tuning: TuningPlan | None
) -> None:
    """Raise ConfigurationError for more runs than a comparison can have."""
    columns = math.prod(map(len, swept.values()))
    runs = len(rows) * columns * (len(seeds) + (len(tuning.values) * tuning.seeds if tuning else 0))
    if runs > MOST_RUNS:
        raise ConfigurationError(
            f"{len(rows)} rows, {columns} columns and {len(seeds)} seeds"
            + (f", with {len(tuning.values)} values to tune on {tuning.seeds} seeds" if tuning else "")
            + f", give {runs:,} runs, expected at most {MOST_RUNS:,}"
        )


def _variant(text: str) -> MethodVariant:
    """Parse NAME: KEY=VALUE KEY=VALUE ..."""
    name, colon, rest = text.partition(":")
    try:
        sets = tuple(shlex.split(rest))
    except ValueError as error:
        raise ConfigurationError(f"--variant {cut(text, 100)}: {error}") from None
    if not colon or not name.strip() or not sets or not all("=" in each for each in sets):
        raise ConfigurationError(
            f"--variant {cut(text, 100)}: expected NAME: KEY=VALUE ..., for instance "
            "'static: method.name=uefl method.iterations=1'"
        )
    return MethodVariant(name.strip(), sets)


def _values(option: str, text: str) -> tuple[str, tuple[Any, ...]]:
    """Parse KEY=VALUE,VALUE,...; values that are not TOML are strings."""
    key, equals, listed = text.partition("=")
    try:
        values = tomllib.loads(f"v = [{listed}]")["v"]
    except tomllib.TOMLDecodeError:
        values = [part.strip() for part in listed.split(",")]
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{option} {cut(text, 100)}: number too long, or list nested too deeply") from None
    if not equals or not key.strip() or not values or "" in values:
        raise ConfigurationError(
            f"{option} {cut(text, 100)}: expected KEY=VALUE,VALUE,..., for instance training.lr=0.001,0.01"
        )
    check_key(key.strip(), option)
    if len(values) > MOST_RUNS:
        raise ConfigurationError(f"{option} {key.strip()}: {len(values):,} values, expected at most {MOST_RUNS:,}")
    before = set[str]()
    for value, written in zip(values, map(toml, values), strict=True):
        if why := senseless(value):
            raise ConfigurationError(f"{option} {key.strip()} = {cut(written, 100)}: {why}")
        if written in before:
            raise ConfigurationError(f"{option} {key.strip()}: the value {cut(written, 100)} is listed twice")
        before.add(written)
    return key.strip(), tuple(values)


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse the seeds of `--seeds`. Raises ConfigurationError for anything but seeds."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--seeds {cut(text, 100)}: expected whole numbers, such as 0,1,2") from None
    for seed in seeds:
        check_seed(seed, "--seeds")
    return seeds
