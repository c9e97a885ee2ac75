"""False alarms among a silo's own inputs, and the wording of alarms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.text import listed, percent, plural
from ...files import RunFolder
from ...files.schema import SiloRecord
from ...uncertainty.statistical_tests import beta_binomial_moments, beta_binomial_tail
from ...uncertainty.typicality import least
from .guarantee import foreign_streams

AN_ALARM = "an alarm (for inputs unlike the silo's own, or more uncertain)"
ALARM_MARKS = "an alarm, which marks inputs unlike the silo's own or more uncertain"
_ALARM = 0.05
"""The assumed `false_alarm_rate` of a run with unknown settings."""
_LEVEL = 0.05
_ONE_SIDED = 1.645
"""The 95 % quantile of a normal distribution."""
_MOST = 6


@dataclass(frozen=True)
class Familiarity:
    """False alarms among silos' own inputs."""

    kind: str
    """Kind of the statement about false alarms."""
    text: str
    able: bool
    """Whether any silo can raise an alarm."""


def promised(run: RunFolder) -> float:
    """Return the maximum expected share of inputs like a silo's own that raise an alarm."""
    found = run.section("uncertainty").get("false_alarm_rate")
    return float(found) if isinstance(found, int | float) else _ALARM


def familiarity(run: RunFolder) -> Familiarity | None:
    """Return the false alarms; None if no input can raise an alarm, or if no silo has counted them."""
    silos, alarm = [silo for silo in run.silos if silo.test.alarms is not None], promised(run)
    if run.summary is None or not silos or not alarm:
        return None
    mute = [] if alarms_together(run, alarm) else [silo for silo in silos if has_few(silo, alarm)]
    pooled = run.summary.alarms.pooled if run.summary.alarms else 0
    in_all = too_many_in_all(silos, alarm, pooled)
    broken = [silo.name for silo in silos if too_many(silo, alarm, len(silos))]
    foreign = foreign_streams(run.summary)
    kind, said = _own_alarms(silos, alarm, in_all or bool(broken))
    kind = kind if foreign else "unknown"  # few false alarms do not show that foreign inputs raise an alarm
    needed = f"too few calibration inputs to raise an alarm (a rate of {100 * alarm:.3g} % takes {least(alarm)})"
    if able := len(mute) < len(silos):
        names = listed([silo.name for silo in mute], _MOST)
        said += f" {len(mute):,} of {plural(len(silos), 'silo')} have {needed}: {names}." * bool(mute)
    else:
        said = f"No unfamiliar input is detected: all silos have {needed}."
    if broken:
        said += f" At {listed(broken, _MOST)}, they are more than guaranteed, beyond chance over all silos."
    elif in_all:
        said += " These are more than guaranteed, beyond chance; test inputs may be unlike calibration inputs."
    said += "" if foreign or not able else " Inputs that silos do not know were not tested (data.ood adds some)."
    return Familiarity("open" if mute or broken or in_all else kind, said, able)


def alarms_only(run: RunFolder) -> bool:
    """Return whether each silo abstains from as many own inputs as raise an alarm, and some input raises one."""
    known = [(silo.test.alarms, silo.test.answered) for silo in run.silos]
    found = [(alarms, 1 - answered) for alarms, answered in known if alarms is not None and answered is not None]
    same = all(math.isclose(alarms, abstained, abs_tol=1e-9) for alarms, abstained in found)
    return same and len(found) == len(known) and any(alarms for alarms, _ in found)


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
    """Return whether all silos together raise more false alarms than guaranteed, beyond chance at 5 %, by a normal
    approximation; False if a count is unknown. Silos with too few calibration inputs count as one with `pooled`."""
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


def _own_alarms(silos: Sequence[SiloRecord], alarm: float, excess: bool) -> tuple[str, str]:
    """Return the kind and the text of the verdict on false alarms; an `excess` is beyond chance."""
    total = sum(silo.n_test or 0 for silo in silos)
    found = sum(round((silo.test.alarms or 0.0) * (silo.n_test or 0)) for silo in silos)
    share = found / total if total else sum(silo.test.alarms or 0.0 for silo in silos) / len(silos)
    counts = f" ({found:,} of {plural(total, 'own test input')})" if total else " of own inputs"
    above = share > alarm
    why = ", by no more than chance explains" * (above and not excess)
    said = f"False alarms: {percent(share)}{counts}, {'above' if above else 'within'} the limit of "
    return "unknown" if above else "good", f"{said}{100 * alarm:.3g} % that is guaranteed on average{why}."
