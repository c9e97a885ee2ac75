"""Alarms: false ones among a silo's own inputs, and detection of out-of-distribution inputs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.text import count, decimal, joined, listed, percent, plural
from ...files import RunFolder
from ...files.schema import NOBODY, Separation, SiloRecord, Stream
from ...uncertainty.familiarity import least
from ...uncertainty.statistical_tests import beta_binomial_moments, beta_binomial_tail
from ..templates import Cell, Table, column, table, words
from .guarantee import foreign_streams

SCORE = "unfamiliar"
_ALARM = 0.05
"""Default if a run's settings are not known."""
_LEVEL = 0.05
_ONE_SIDED = 1.645
"""The 95 % quantile of a normal distribution."""
_MOST = 6
_DETECTED = 0.9
"""Minimum share of inputs that silos do not know with an alarm, if nothing about alarms is to be marked."""
_TIED = 0.02
"""Tolerance of an AUROC above which its value is flagged."""


@dataclass(frozen=True)
class Familiarity:
    """False alarms by silo, and detection by stream."""

    sentence: str
    alarm: bool
    table: Table | None
    notes: Sequence[str]
    detected: str
    """How many inputs that silos do not know raise an alarm."""
    missed: bool
    """Whether too few of these do."""


def promised(run: RunFolder) -> float:
    """Return the maximum expected share of inputs like a silo's own that raise an alarm."""
    found = run.section("uncertainty").get("false_alarm_rate")
    return float(found) if isinstance(found, int | float) else _ALARM


def familiarity(run: RunFolder) -> Familiarity | None:
    """Return the section; None if no input can raise an alarm, or if no silo has counted them."""
    silos, alarm = [silo for silo in run.silos if silo.test.alarms is not None], promised(run)
    if run.summary is None or not silos or not alarm:
        return None
    few, together = [silo for silo in silos if has_few(silo, alarm)], alarms_together(run, alarm)
    mute = [] if together else few
    pooled = run.summary.alarms.pooled if run.summary.alarms else 0
    in_all = too_many_in_all(silos, alarm, pooled)
    broken = [silo for silo in silos if too_many(silo, alarm, len(silos))]
    foreign = foreign_streams(run.summary)
    said, notes = _sentence(silos, alarm, in_all or bool(broken), pooled), []
    if mute and len(mute) == len(silos):
        said = f"No silo can raise an alarm, because {least(alarm)} calibration inputs are needed at "
        said += f"{100 * alarm:.3g} %: no unfamiliar input is detected."
    elif mute:
        names = listed([silo.name for silo in mute], _MOST)
        notes.append(
            f"{len(mute):,} of {plural(len(silos), 'silo')} cannot raise an alarm, because they need "
            f"{least(alarm)} calibration inputs at {100 * alarm:.3g} %: {names}."
        )
    elif few:
        names, every = listed([silo.name for silo in few], _MOST), f"All {plural(len(silos), 'silo')} have"
        which = every if len(few) == len(silos) else f"{len(few):,} of {plural(len(silos), 'silo')} ({names}) have"
        notes.append(
            f"{which} fewer than the {least(alarm)} calibration inputs that their own alarms need. The guarantee "
            "holds for these silos together, not for each."
        )
    if broken:
        names = listed([silo.name for silo in broken], _MOST)
        notes.append(f"More false alarms than guaranteed, beyond what chance explains over all silos: {names}.")
    elif in_all:
        notes.append(
            "All silos together raise more false alarms than guaranteed, beyond what chance explains: test inputs are "
            "unlike calibration inputs."
        )
    found = [alarms for each in foreign.values() if (alarms := each.chosen.pooled.alarms) is not None]
    missed = min(found, default=1.0) < _DETECTED
    detected = _detected(foreign) if not mute or len(mute) < len(silos) else ""
    return Familiarity(said, bool(mute or broken or in_all), _table(foreign), notes, detected, missed)


def has_few(silo: SiloRecord, alarm: float) -> bool:
    """Return whether a silo has too few calibration inputs for its own alarms."""
    return silo.n_calibration is not None and silo.n_calibration < least(alarm)


def alarms_together(run: RunFolder, alarm: float) -> bool:
    """Return whether silos with too few calibration inputs raise alarms by those of all such silos."""
    found = run.summary.alarms if run.summary else None
    return found is not None and found.pooled >= least(alarm)


def too_many(silo: SiloRecord, alarm: float, silos: int) -> bool:
    """Return whether a silo raises more false alarms than guaranteed, beyond chance at 5 % over all silos.

    The guarantee is an expectation over calibration splits: with k = floor(false_alarm_rate (n + 1)) for n calibration
    inputs, the count among test inputs follows a beta-binomial distribution with parameters k and n + 1 - k. A silo
    with too few calibration inputs, k = 0, has no guarantee of its own.
    """
    n, inputs, share = silo.n_calibration, silo.n_test, silo.test.alarms
    if not n or not inputs or share is None:
        return False
    k = math.floor(alarm * (n + 1) + 1e-9)
    found = round(share * inputs)
    return k > 0 and beta_binomial_tail(found, inputs, k, n + 1 - k) < _LEVEL / silos


def too_many_in_all(silos: Sequence[SiloRecord], alarm: float, pooled: int = 0) -> bool:
    """Return the same for all silos together, whose sum is about normal; False if a count is unknown. Silos with too
    few calibration inputs count as one with all of these, `pooled`."""
    found, mean, variance, few = 0.0, 0.0, 0.0, 0
    for silo in silos:
        n, inputs = silo.n_calibration, silo.n_test
        if n is None or not inputs:
            return False
        k = math.floor(alarm * (n + 1) + 1e-9)
        if not k and not pooled:
            continue
        found += (silo.test.alarms or 0.0) * inputs
        if not k:
            few += inputs
            continue
        of_silo = beta_binomial_moments(inputs, k, n + 1 - k)
        mean, variance = mean + of_silo[0], variance + of_silo[1]
    if few and (k := math.floor(alarm * (pooled + 1) + 1e-9)):
        of_few = beta_binomial_moments(few, k, pooled + 1 - k)
        mean, variance = mean + of_few[0], variance + of_few[1]
    return found - mean > _ONE_SIDED * math.sqrt(variance)


def _sentence(silos: Sequence[SiloRecord], alarm: float, excess: bool, pooled: int) -> str:
    own = sum(silo.test.alarms or 0.0 for silo in silos) / len(silos)
    promise = f"guaranteed: at most {100 * alarm:.3g} %" + " on average" * (len(silos) > 1)
    if own > alarm and not excess:
        few = f" from {pooled:,} calibration inputs of small silos together" if pooled else ""
        promise += f", no more than chance explains{few}"
    mean = f", mean over {len(silos):,} silos" if len(silos) > 1 else ""
    return f"It raises alarms on {percent(own)} of the silos' own test inputs{mean}, which are false ({promise})."


def _detected(foreign: Mapping[str, Stream]) -> str:
    texts = [
        f"{percent(each.chosen.pooled.alarms)} of {name}"
        for name, each in foreign.items()
        if each.chosen.pooled.alarms is not None
    ]
    if not texts:
        return "It was not tested on inputs that silos do not know (data.ood)."
    return f"Of inputs that silos do not know, it raises alarms on {joined(texts)}."


def _table(foreign: Mapping[str, Stream]) -> Table | None:
    """Return a row per stream: how much of it is detected, and how well the score separates it from what silos know."""
    found = {name: each for name, each in foreign.items() if each.chosen.pooled.alarms is not None}
    if not found:
        return None
    texts = [next((of[SCORE] for of in each.outside.values() if SCORE in of), Separation()) for each in found.values()]
    nobody = [name == NOBODY for name in found]
    answered = [
        each.chosen.pooled.answered if alone else None for each, alone in zip(found.values(), nobody, strict=True)
    ]
    columns = [
        words("inputs that silos do not know", list(found)),
        column("inputs", [count(each.examples) for each in found.values()]),
        column("unfamiliar", [percent(each.chosen.pooled.unfamiliar) for each in found.values()], "far from own data"),
        column("novel", [percent(each.chosen.pooled.novel) for each in found.values()], "near no training input"),
        column("unsure", [percent(each.chosen.pooled.unsure) for each in found.values()], "answers less certain"),
        column("answered nevertheless", [Cell(percent(value)) for value in answered], "of inputs that no silo knows"),
        column("AUROC", map(separated, texts), "of the score; 0.5 is chance, 1 is best"),
        column("FPR95", [percent(each.fpr95) for each in texts], "share of own inputs flagged when 95 % of these are"),
    ]
    caption = "Inputs that silos do not know: the shares with alarms, and how well the score unfamiliar separates them "
    return table(columns, f"{caption}from their own test split.")


def separated(found: Separation) -> Cell:
    """Return an AUROC, flagged if it is inexact because many scores are equal."""
    tolerance = found.auroc_tolerance or 0.0
    tied = f"so many scores are equal that the value is only known to within {tolerance:.3f}"
    return Cell(decimal(found.auroc), tied if tolerance > _TIED else "")
