"""Warnings about the result of a finished run: `warnings` of summary.json, which the report and the terminal show.

A check is a function of the `RunResult` that yields a `Caution` for each problem that a user should know before using
the model; to add one, append a function to `CHECKS`. A method adds its own by `Method.cautions`. Checks of models use
the validation split, because users change settings after a warning. Each check needs a minimum number of inputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..core import Caution, Payload, SiloId, Tensors
from ..core.text import joined, listed, named, plain
from ..data.setting_lines import advised
from ..files.schema import Summary, WarningRecord
from ..metrics import merge
from ..uncertainty.mondrian import pools
from ..uncertainty.temperature import USUAL
from ..uncertainty.typicality import least
from ..wrappers.base import find
from ..wrappers.error_guarantee_policy import Guaranteed
from .base import BaseRun
from .collapse import collapse

_MOST_CLASSES = 6
"""Maximum number of classes that a text names."""


@dataclass(frozen=True)
class RunResult:
    """The input of checks: the run, its summary, and the measurements of each silo on two splits."""

    run: BaseRun
    summary: Summary
    validation: Mapping[SiloId, Payload]
    test: Mapping[SiloId, Payload]

    @property
    def skill(self) -> dict[SiloId, Tensors]:
        """The sums of `metrics.skill` of each silo that has validation inputs; silos send them with the sums over the
        test split."""
        return {silo: payload["skill"] for silo, payload in self.test.items() if "skill" in payload}


def of_data(result: RunResult) -> Iterator[Caution]:
    """Yield the warnings about the data, if they are on this machine."""
    yield from (Caution("data", f"{text[:1].upper()}{text[1:]}.") for text in result.run.unusual)


def of_method(result: RunResult) -> Iterator[Caution]:
    """Yield the warnings of the method itself."""
    yield from method_cautions(result.run, described(result.validation))


def described(payloads: Mapping[SiloId, Payload]) -> dict[SiloId, Tensors]:
    """Return the sums of `Method.describe` of each silo that sent them with its evaluation."""
    return {silo: payload["method"] for silo, payload in payloads.items() if payload["method"]}


def method_cautions(run: BaseRun, sums: Mapping[SiloId, Tensors]) -> Iterator[Caution]:
    """Yield the method's warnings about the sums of `Method.describe`."""
    yield from run.complete_method.cautions(sums, len(run.info.classes)) if sums else ()


def collapsed(result: RunResult) -> Iterator[Caution]:
    """Yield the warnings of collapsed models; none for a quantity, whose checks would need classes."""
    if result.run.info.target is not None:
        return
    sums = [payload["sums"] for payload in result.validation.values()]
    loss = float(sum(each["nll"] for each in sums) / sum(each["known"] for each in sums)) if sums else math.nan
    yield from collapse(result.skill, loss, len(result.run.info.classes))


def full_sets(result: RunResult) -> Iterator[Caution]:
    """Warn of silos whose prediction sets all contain all classes because there are too few calibration inputs."""
    if (sets := result.summary.sets) is None:
        return
    sizes = {silo: payload["sums"]["set_sizes"] for silo, payload in result.test.items()}
    few = {silo.name for silo in result.summary.silos if (silo.n_calibration or 0) < sets.least}
    full = tuple(silo for silo, counts in sizes.items() if silo in few and counts.any() and not counts[:-1].any())
    if full:
        yield Caution(
            "full_sets",
            f"Every prediction set of test inputs holds all classes at {named(full)}, because there are fewer than "
            f"{sets.least} calibration inputs.",
            "Increase data.split.calibration, or lower uncertainty.set_coverage.",
            full,
        )


_MOST = 12
"""Maximum number of named silos or classes."""


def few_calibration_inputs(result: RunResult) -> Iterator[Caution]:
    """Warn of silos with too few calibration inputs for promises about each of them."""
    sizes = {silo.name: silo.n_calibration or 0 for silo in result.summary.silos}
    few = [(text, most, {name: n for name, n in sizes.items() if n < most}) for text, most in promises(result)]
    ends = dict.fromkeys([min(sizes.values(), default=0), max(sizes.values(), default=0)])
    every = f"the {len(sizes):,} silos ({' to '.join(f'{end:,}' for end in ends)})"
    silos = tuple(name for name in sizes if any(name in each for _, _, each in few))
    if silos:
        told = (
            text.format(every if len(each) == len(sizes) > _MOST else numbered(each), least=f"{most:,}")
            for text, most, each in few
            if each
        )
        yield Caution(
            "few_calibration_inputs",
            f"Numbers of calibration inputs are in brackets; what follows is about inputs like these. {' '.join(told)}",
            "Give these silos more rows, or increase data.split.calibration.",
            silos,
        )


def promises(result: RunResult) -> Iterator[tuple[str, int]]:
    """Yield, for each guarantee for a single silo, a text about silos without it and the number of calibration inputs
    that it needs."""
    asked, sets, intervals = result.run.spec.uncertainty, result.summary.sets, result.summary.intervals
    bound = find(result.run.complete_method, Guaranteed)
    if asked.familiarity and (rate := asked.false_alarm_rate):
        enough, pooled = least(rate), result.summary.alarms
        together = pooled is not None and pooled.pooled >= enough
        one, other = "The false alarm rate holds for all of {} together, not for each", "No alarm can be raised at {}"
        yield f"{one if together else other}: that takes {{least}}.", enough
    if sets is not None and not sets.label_shift:
        yield "The coverage of sets holds for all of {} together, not for each: that takes {least}.", sets.least
    if intervals is not None:
        yield (
            "The coverage of intervals holds for all of {} together, not for each: that takes {least}.",
            intervals.least,
        )
    if bound is not None and bound.guarantee_scope == "silo":
        yield "The bound on errors is not about each of {}: that takes {least}.", bound.least


def extreme_temperatures(result: RunResult) -> Iterator[Caution]:
    """Warn of models whose probabilities fit the labels only with an extreme temperature."""
    found = result.summary.temperature.items()
    extreme = {model: value for model, value in found if not 1 / USUAL <= value <= USUAL}
    if extreme:
        values = joined([f"{value:.2g} for the {model} model" for model, value in extreme.items()])
        yield Caution(
            "extreme_temperature",
            f"The temperatures that fit the validation splits are extreme ({values}): the model's own probabilities "
            "are hardly related to how often it is right.",
            "Look at the accuracy, and try another training.lr or more rounds.",
        )


def absent_classes(result: RunResult) -> Iterator[Caution]:
    """Warn of classes without calibration inputs, about whose inputs a coverage says nothing, in groups of silos."""
    texts, silos = [], list[SiloId]()
    for group, found in quantile_groups(result):
        absent = (found["calibration"] == 0).nonzero().flatten().tolist()
        if absent and found["calibration"].any():
            names = named([repr(result.run.info.classes[k]) for k in absent], _MOST_CLASSES)
            names = f"class{'es' * (len(absent) > 1)} {names}"
            held = int(found["in_sets"][absent].amax())
            often = f"each in at most {held:,}" if held else "in none"
            inputs = f"{int(found['inputs']):,} prediction sets of validation inputs"
            texts.append(f"{names} at {named(group)} ({often} of {inputs})")
            silos += group
    if texts:
        yield Caution(
            "absent_classes",
            f"Without calibration inputs: {'; '.join(texts)}. The coverage of sets says nothing about inputs of this "
            "kind.",
            "Do not use the sets there to rule such a class out.",
            tuple(silos),
        )


def pooled_classes(result: RunResult) -> Iterator[Caution]:
    """Warn of classes that share a quantile, so the coverage of sets per class does not hold for each of them."""
    if (sets := result.summary.sets) is None or not sets.per_class:
        return
    texts, silos = [], list[SiloId]()
    for group, found in quantile_groups(result):
        counts = found["calibration"]
        pool = pools(counts, sets.least)
        parts = [((pool == k) & (counts > 0)).nonzero().flatten().tolist() for k in sorted(set(pool.tolist()))]
        shared = [numbered({result.run.info.classes[k]: int(counts[k]) for k in part}) for part in parts if part[1:]]
        if shared:
            texts.append(f"{' and '.join(shared)} at {named(group)}")
            silos += group
    if texts:
        yield Caution(
            "pooled_classes",
            f"Classes that are pooled because one has fewer than {sets.least} calibration inputs (numbers in "
            f"brackets): {'; '.join(texts)}. The coverage of sets holds for their inputs together, not for each class.",
            "Increase data.split.calibration, or do not rely on the sets for the rarer of these classes.",
            tuple(silos),
        )


def quantile_groups(result: RunResult) -> Iterator[tuple[tuple[SiloId, ...], Tensors]]:
    """Yield the silos that share the quantiles of prediction sets, and the sums of their calibration inputs by class
    and of their sets: each silo with enough calibration inputs, and all others together."""
    sums, sets = {silo: each for silo, each in result.skill.items() if "calibration" in each}, result.summary.sets
    if sets is None or not sums:
        return
    alone = {silo: (silo,) for silo, each in sums.items() if each["calibration"].sum() >= sets.least}
    together = tuple(silo for silo in sums if silo not in alone)
    for group in (*alone.values(), *([together] if together else [])):
        names = ("calibration", "in_sets", "inputs")
        yield group, merge({name: sums[silo][name] for name in names} for silo in group)


CHECKS: tuple[Callable[[RunResult], Iterator[Caution]], ...] = (
    of_data,
    collapsed,
    of_method,
    full_sets,
    absent_classes,
    pooled_classes,
    few_calibration_inputs,
    extreme_temperatures,
)


def result_warnings(result: RunResult) -> list[WarningRecord]:
    """Return the warnings of all checks."""
    found = (caution for check in CHECKS for caution in check(result))
    return [
        WarningRecord(
            **each._asdict() | {"silos": list(each.silos)}, settings=advised(each.text) if each.kind == "data" else []
        )
        for each in found
    ]


def numbered(sizes: Mapping[str, int]) -> str:
    """Return names, of silos or classes, each with a number."""
    return listed([f"{plain(name)} ({number:,})" for name, number in sizes.items()], _MOST)
