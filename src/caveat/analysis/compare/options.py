"""Parse the options of `caveat compare`."""

import math
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from ...config import find, load
from ...config.load import check_key
from ...config.toml import senseless, toml
from ...core import ConfigurationError
from ...core.errors import cut
from ...core.settings import check_seed
from ...files.schema.grid import MethodVariant, Setting, TuningPlan
from ...methods import METHODS
from ...methods.plugins import advice
from ...metrics.custom_metrics import check_known, known_metrics
from ...runs.user_code import import_named
from .grid import Grid, key_of, swept, with_own

MOST_RUNS = 10_000
"""Of one comparison."""


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
    """The comparison that options ask for. Raises ConfigurationError naming the option."""
    config = load(source, sets)
    import_named(config)
    check_known(config.evaluation.metrics)
    if methods is not None and not methods.strip():
        raise ConfigurationError("--methods: expected names between commas, for instance fedavg,uefl")
    names = methods.split(",") if methods else [] if variants else [config.method.name, *config.baselines]
    rows = [MethodVariant(name.strip(), (f"method.name={name.strip()}",)) for name in names]
    for method in rows:
        if method.name not in METHODS:
            about = f"no such method {cut(method.name, 100)!r}; `caveat list methods` has all; {advice(method.name)}"
            raise ConfigurationError(f"--methods {cut(str(methods), 100)}: {about}")
    rows += map(_variant, variants)
    tuning = TuningPlan(*_values("--tune", tune), seeds=tune_seeds) if tune else None
    if tune_seeds > (most := len(_seeds(seeds)) if tune else 1):
        known = f"at most {most}, the number of --seeds" if tune else "--tune beside it"
        raise ConfigurationError(f"--tune-seeds {tune_seeds}: expected {known}")
    pairs = [_values("--sweep", sweep) for sweep in sweeps]
    swept_values = dict(pairs)
    if len(swept_values) < len(pairs):
        raise ConfigurationError(f"--sweep: {', '.join(key for key, _ in pairs)} are not all different")
    for key in (*map(key_of, sets), *swept_values):
        if key in ("seed", "baselines"):
            raise ConfigurationError(f"{key} is not for --set or --sweep here: --seeds and --methods say it")
    check_size(rows, _seeds(seeds), swept_values, tuning)
    return Grid(
        title=f"{find(source).stem}: {', '.join(row.name for row in rows)}",
        rows=tuple(rows),
        columns=swept([Setting("", source, tuple(sets))], swept_values),
        seeds=_seeds(seeds),
        tuning=tuning,
        match_rounds=match_rounds or "",
        swept=tuple(swept_values),
        measures=with_own(known_metrics(config.evaluation.metrics)),
    )


def check_size(
    rows: Sequence[MethodVariant], seeds: Sequence[int], swept: Mapping[str, Sequence[Any]], tuning: TuningPlan | None
) -> None:
    """Raises ConfigurationError for more runs than a comparison can have, before they are listed."""
    columns = math.prod(map(len, swept.values()))
    runs = len(rows) * columns * (len(seeds) + (len(tuning.values) * tuning.seeds if tuning else 0))
    if runs > MOST_RUNS:
        raise ConfigurationError(
            f"{len(rows)} rows, {columns} columns and {len(seeds)} seeds"
            + (f", of which {tuning.seeds} try {len(tuning.values)} values" if tuning else "")
            + f", are {runs:,} runs, expected at most {MOST_RUNS:,}"
        )


def _variant(text: str) -> MethodVariant:
    """NAME: KEY=VALUE KEY=VALUE ..."""
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
    """KEY=VALUE,VALUE,...; a value is TOML, and what is none is a string."""
    key, equals, listed = text.partition("=")
    try:
        values = tomllib.loads(f"v = [{listed}]")["v"]
    except tomllib.TOMLDecodeError:
        values = [part.strip() for part in listed.split(",")]
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{option} {cut(text, 100)}: a number too long, or a list nested too deeply") from None
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
            raise ConfigurationError(f"{option} {key.strip()}: {cut(written, 100)} stands there twice")
        before.add(written)
    return key.strip(), tuple(values)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        about = f"--seeds {cut(text, 100)}: expected whole numbers between commas, such as 0,1,2"
        raise ConfigurationError(about) from None
    for seed in seeds:
        check_seed(seed, "--seeds")
    return seeds
