"""Tests of the claims that the names of uncertainties make.

A finding is "cannot say" if the 95 % interval over seeds contains the deciding limit, because other seeds could reverse
it. One seed has no spread and never decides. `correction.corrected` then corrects for the number of findings.

Where one model is uncertain, other models are uncertain, too, and differ, so any entropy correlates with disagreement.
`disagreement` therefore uses the partial correlation, at equal aleatoric uncertainty.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...core.text import apart, percent
from ...files.schema import Finding, Verdict
from ...uncertainty import plug_in_mutual_information
from ...uncertainty.statistical_tests import ranks as ranked
from . import run_predictions, seed_statistics
from .correction import Uncorrected, p_value
from .run_predictions import Observation, Observed
from .seed_statistics import Spread

SLOWEST = -0.25
"""Exponent of n above which an uncertainty does not count as decreasing. Epistemic uncertainty decreases as n^-1 if it
is like a variance (mutual information, vacuity), and as n^-0.5 if it is like a standard deviation; the limit is half of
the latter."""
ONE_THING = 0.9
"""Rank correlation above which two scores count as the same ranking."""
STABLE = 0.7
"""Rank correlation between seeds below which less than 70 % of the variance of ranks is due to the input."""
NOTHING = 1e-9
"""Limit in nats, above rounding errors: a model whose epistemic uncertainty is lower for every input has none."""
PRACTICALLY = 1e-3
"""Share of total uncertainty below which epistemic uncertainty is practically zero."""
CONFIDENCE = "confidence"
"""The name of the finding about calibration."""
CALLED = {"epistemic": "epistemic uncertainty"}
PAIR = " Two seeds make one pair, and the jackknife needs more: use more seeds."
SILENT = "This model has no epistemic uncertainty: it is zero for every test input."


def decide(low: float, high: float, limit: float, wanted: Literal["below", "above"]) -> Verdict:
    """Return "holds" if an interval is on the wanted side of a limit, "cannot say" if it contains it or is infinite."""
    if not (math.isfinite(low) and math.isfinite(high)) or low <= limit <= high:
        return "cannot say"
    return "holds" if (high < limit) == (wanted == "below") else "does not hold"


def silent(runs: Sequence[Observed]) -> bool:
    """Return whether epistemic uncertainty is zero for every test input of every run."""
    return all(float(o.uncertainty["epistemic"].max()) < NOTHING for run in runs for o in run.values())


def open_because(
    verdict: Verdict,
    seeds: int,
    spread: Spread | seed_statistics.Jackknifed | None = None,
    limit: float = math.nan,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    whose: str = "the mean",
) -> str:
    """Return the explanation of an open verdict: the interval of `whose` number, clipped to `bounds`."""
    if verdict != "cannot say":
        return ""
    if seeds < 2:
        return " One seed has no spread: other seeds may differ."
    ends = spread.interval if spread is not None else (math.nan, math.nan)
    ends = min(max(ends[0], bounds[0]), bounds[1]), min(max(ends[1], bounds[0]), bounds[1])
    low, high, at = apart(*ends, limit)
    if all(map(math.isfinite, ends)) and low != high:
        text = f" With {seeds} seeds {whose} over all possible seeds may be from {low} to {high} (95 % interval), on "
        return f"{text}either side of the limit {at}."
    return f" The {seeds} seeds differ too much to decide on which side of the limit this is: use more seeds."


def sample_size(rows: Sequence[Mapping[str, float]], name: str) -> Finding:
    """Test whether an uncertainty decreases with more data, from a row per share and seed with "seed", "n" (mean
    training examples of a silo), and the mean over test inputs of `name`."""
    called = CALLED.get(name, name)
    title, claim = f"{name} and data", f"{called} decreases with more data"
    seeds = dict.fromkeys(row["seed"] for row in rows)
    by_seed = [sorted((row for row in rows if row["seed"] == seed), key=lambda row: row["n"]) for seed in seeds]
    sizes = sorted({row["n"] for row in rows})
    if name == "epistemic" and all(row[name] < NOTHING for row in rows):
        return Finding(title, claim, "cannot say", SILENT, {})
    if len(sizes) < 2 or any(row[name] <= 0 for row in rows):
        reason = "One fraction of the data" if len(sizes) < 2 else f"A mean {called} of zero"
        return Finding(title, claim, "cannot say", f"{reason} has no slope.", {})
    slopes = _slopes(by_seed, name)
    verdict = decide(*slopes.interval, SLOWEST, "below")
    left = sum(mine[-1][name] for mine in by_seed) / sum(mine[0][name] for mine in by_seed)
    measured = {"exponent": slopes.record, "limit": SLOWEST, "n": sizes, "ratio_last_to_first": float(left)}
    measured |= p_value(slopes, SLOWEST)
    facts, conclusion = _of_slope(called, verdict, slopes, sizes, float(left))
    if name == "epistemic":
        mine, total = (sum(r.get(which, 0.0) for r in rows if r["n"] == sizes[-1]) for which in (name, "total"))
        measured["practically_zero"] = mine < PRACTICALLY * total
        if measured["practically_zero"]:
            facts += f" It is practically zero: {percent(mine / total, 3)} of total uncertainty with all data."
        if all(row.get("aleatoric", 0.0) > 0 for row in rows):
            measured["aleatoric_exponent"] = _slopes(by_seed, "aleatoric").record
    return Uncorrected(title, claim, verdict, facts + conclusion, measured, facts)


def _slopes(by_seed: Sequence[Sequence[Mapping[str, float]]], name: str) -> Spread:
    """Return the exponents of the number of training examples over seeds."""
    return Spread(
        tuple(seed_statistics.log_log_slope([r["n"] for r in mine], [r[name] for r in mine]) for mine in by_seed)
    )


def _of_slope(called: str, verdict: Verdict, slopes: Spread, sizes: Sequence[float], left: float) -> tuple[str, str]:
    """Return what was found about a slope, and what follows."""
    trend = _trend(slopes)
    found = (
        f"Mean {called} {trend}, with n to the power of {slopes}: on {round(sizes[-1] / sizes[0], 1):g} times the data "
        f"it is multiplied by {left:.2f}."
    )
    if verdict == "does not hold":
        falls = "falls" in trend
        reason = "Epistemic uncertainty falls faster" if falls else "Uncertainty that does not fall is not epistemic"
        return found, f" {reason}: use it only to rank inputs."
    if verdict == "holds":
        faster = " This is faster than either: something else than more data may lower it."
        return found, f" A variance falls as 1/n, a standard deviation as 1/√n.{faster * (slopes.interval[1] < -1)}"
    return found, open_because(verdict, len(slopes.values), slopes, SLOWEST)


def _trend(slopes: Spread) -> str:
    """Describe how an uncertainty changes with more data: "hardly" is a small change that may be zero."""
    if f"{slopes.mean:z.2f}" == "0.00":
        return "stays the same"
    verb = "falls" if slopes.mean < 0 else "rises"
    if abs(slopes.mean) >= -SLOWEST:
        return verb
    little = abs(slopes.mean) < min(-SLOWEST / 2, slopes.half)
    return f"hardly {verb}" if little else f"{verb} slowly"


def two_things(runs: Sequence[Observed]) -> Finding:
    """Test whether aleatoric and epistemic uncertainty rank a silo's test inputs differently, from one run per seed."""
    title = "aleatoric and epistemic"
    claim = "aleatoric and epistemic uncertainty rank inputs differently"
    if silent(runs):
        return Finding(title, claim, "cannot say", SILENT, {})
    found = [seed_statistics.mean_of_known(_between(o, "aleatoric", o) for o in run.values()) for run in runs]
    if None in found:
        return Finding(title, claim, "cannot say", "One of the two is constant over the test inputs.", {})
    spread = Spread(tuple(value for value in found if value is not None))
    # A perfect negative correlation is the same ranking, reversed.
    size = Spread(tuple(abs(value) for value in spread.values))
    verdict = decide(*size.interval, ONE_THING, "below")
    facts = f"Their rank correlation over the test inputs of a silo is {spread}."
    why = open_because(verdict, len(runs), size, ONE_THING, (0, 1), "the mean of its absolute value")
    if verdict == "does not hold":
        turned = ", one of them reversed" if spread.mean < 0 else ""
        why = f" Both measure the same{turned}: which inputs are uncertain, not why."
    elif verdict == "holds":
        why = " They rank inputs differently, which does not prove that each measures what its name says."
    measured = {"rank_correlation": spread.record, "limit": ONE_THING, **p_value(size, ONE_THING)}
    return Uncorrected(title, claim, verdict, facts + why, measured, facts)


def seeds_agree(runs: Sequence[Observed]) -> Finding:
    """Test whether models trained with different seeds are uncertain on the same inputs."""
    title, claim = "seeds", "epistemic uncertainty depends on the data, not on the seed"
    if silent(runs):
        return Finding(title, claim, "cannot say", SILENT, {})
    pairs = list(combinations(runs, 2))
    known = [
        seed_statistics.mean_of_known(_between(one[silo], "epistemic", other[silo]) for silo in one)
        for one, other in pairs
    ]
    found = [value for value in known if value is not None]
    if not found or len(found) < len(pairs):
        reason = "One seed cannot be compared." if not pairs else "It is constant over the test inputs."
        return Finding(title, claim, "cannot say", reason, {})
    means = [np.mean([float(o.uncertainty["epistemic"].mean()) for o in run.values()]) for run in runs]
    relative = float(np.std(means, ddof=1) / np.mean(means))
    changed = float(np.mean([float((a[s].label != b[s].label).double().mean()) for a, b in pairs for s in a]))
    by_pair = dict(zip(combinations(range(len(runs)), 2), found, strict=True))
    spread = seed_statistics.Jackknifed(float(np.mean(found)), _means_without(by_pair))
    verdict = decide(*spread.interval, STABLE, "above")
    mean, low, high = apart(float(np.mean(found)), min(found), max(found))
    over = f" ({low} to {high} over pairs)" if len(found) > 1 else ""
    facts = (
        f"Between two seeds, the rank correlation of epistemic uncertainty over a silo's test inputs is "
        f"{mean}{over}; its mean varies by {percent(relative, 0)} and {percent(changed)} of labels change."
    )
    measured = {
        "rank_correlation": spread.record, "rank_correlations": found, "limit": STABLE, "relative_spread": relative,
        "labels_changed": changed, **p_value(spread, STABLE),
    }  # fmt: skip
    why = PAIR if len(pairs) == 1 else open_because(verdict, len(runs), spread, STABLE, (-1, 1))
    if verdict == "does not hold":
        ends = [100 * min(max(value, 0.0), 1.0) for value in (spread.mean, *spread.interval)]
        why = " {:.0f} % of the variance of ranks is due to the input (95 % interval {:.0f} to {:.0f} %)".format(*ends)
        why += ", less than to the seed" * (spread.interval[1] < 0.5)
        why += '. The alarm "unfamiliar" is of another score, which is not tested here.'
    return Uncorrected(title, claim, verdict, facts + why, measured, facts)


def _means_without(pairs: Mapping[tuple[int, int], float]) -> tuple[float, ...]:
    """Return for each seed the mean over the pairs without it; empty for two seeds."""
    seeds = sorted(set(chain(*pairs)))
    left = [[value for pair, value in pairs.items() if seed not in pair] for seed in seeds]
    return tuple(float(np.mean(values)) for values in left) if all(left) else ()


def _between(one: Observation, name: str, other: Observation) -> float | None:
    """Return the rank correlation of the uncertainty `name` in one run with the epistemic uncertainty in another."""
    return seed_statistics.rank_correlation(one.uncertainty[name], other.uncertainty["epistemic"])


ADDS = 0.2
"""Partial rank correlation with the disagreement of a few models, below which epistemic uncertainty adds little to
aleatoric uncertainty. The limit is low because the measurement error of three models' disagreement alone lowers a
perfect correlation to 0.6 or 0.8. A score with no more information than an entropy reaches 0.1 with many seeds."""
NAMES, BEYOND = ("epistemic", "aleatoric"), "beyond"
TWO = " Two seeds are too few for the jackknife: use more seeds."
Ranks = NDArray[np.float64]
"""Ranks (N,) of a silo's test inputs with mean 0 and norm 1; a dot product of two is Spearman's correlation."""


def disagreement(runs: Sequence[Observed]) -> Finding:
    """Test whether epistemic uncertainty predicts how much models of other seeds disagree, from one run per seed.
    Disagreement is their Jensen-Shannon divergence (Juergens et al., ICML 2024, use such a reference distribution)."""
    title = "disagreement"
    claim = "at equal ambiguity, epistemic uncertainty is high where models disagree"
    if silent(runs) or len(runs) < 2:
        reason = SILENT if silent(runs) else "One seed has no disagreement."
        return Finding(title, claim, "cannot say", reason, {})
    ranks = [
        {silo: {name: _ranks(seen.uncertainty[name].numpy()) for name in NAMES} for silo, seen in run.items()}
        for run in runs
    ]
    whole = _correlations(runs, ranks, range(len(runs)))
    if whole is None:
        return Finding(title, claim, "cannot say", "It is constant over the test inputs.", {})
    # A single seed has no disagreement, so the jackknife needs three.
    fewer = seed_statistics.without_each(len(runs)) if len(runs) > 2 else []
    left = [found for kept in fewer if (found := _correlations(runs, ranks, kept)) is not None]
    known = left if len(left) == len(fewer) else []
    epistemic, aleatoric, beyond = (
        seed_statistics.Jackknifed(whole[name], tuple(found[name] for found in known)) for name in (*NAMES, BEYOND)
    )
    verdict, told = decide(*beyond.interval, ADDS, "above"), apart(epistemic.mean, aleatoric.mean, beyond.mean)
    facts = (
        f"Its rank correlation with the disagreement of {len(runs)} retrained models is {told[0]}, that "
        f"of aleatoric uncertainty {told[1]}; at equal aleatoric uncertainty it is {told[2]}."
    )
    measured = {
        "rank_correlation": epistemic.record, "aleatoric": aleatoric.mean, "partial": beyond.record, "limit": ADDS,
        **p_value(beyond, ADDS),
    }  # fmt: skip
    why = TWO if len(runs) == 2 else open_because(verdict, len(runs), beyond, ADDS, (-1, 1))
    if verdict == "does not hold":
        why = " It predicts the effect of retraining hardly better than aleatoric uncertainty."
    return Uncorrected(title, claim, verdict, facts + why, measured, facts)


def _correlations(
    runs: Sequence[Observed], ranks: Sequence[dict[str, dict[str, Ranks | None]]], kept: Sequence[int]
) -> dict[str, float] | None:
    """Return correlations of both uncertainties with the disagreement of the seeds `kept`, and the partial one, means
    over seeds and silos; None if a seed has no silo in which all three are defined."""
    chosen = [runs[i] for i in kept]
    real = {
        silo: _ranks(plug_in_mutual_information(run_predictions.stacked(chosen, silo)).numpy()) for silo in chosen[0]
    }
    by_seed: list[dict[str, float]] = []
    for seed in kept:
        silos = []
        for silo, own in ranks[seed].items():
            epistemic, aleatoric, between = own["epistemic"], own["aleatoric"], real[silo]
            if epistemic is None or between is None:
                continue
            said = float(epistemic @ between)
            # A constant has no rank correlation.
            other, shared = (0.0, 0.0) if aleatoric is None else (aleatoric @ between, aleatoric @ epistemic)
            partial = seed_statistics.partial_correlation(said, float(other), float(shared))
            silos.append({"epistemic": said, "aleatoric": float(other), BEYOND: partial})
        if not silos:
            return None
        by_seed.append({name: float(np.mean([each[name] for each in silos])) for name in silos[0]})
    return {name: float(np.mean([each[name] for each in by_seed])) for name in by_seed[0]}


def _ranks(values: NDArray[np.float64]) -> Ranks | None:
    """Return standardized ranks; None if values are constant or not finite."""
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    centerd = ranked(values) - (len(values) + 1) / 2
    return np.asarray(centerd / np.linalg.norm(centerd), dtype=np.float64)


EPISTEMIC_NAME, LOGITS_NAME = "epistemic uncertainty", "the logits' variance"


def about_logits(runs: Sequence[Observed]) -> tuple[Finding, ...]:
    """Test the variance of logits like epistemic uncertainty, from one run per seed; empty without this score. The
    tests are whether it ranks inputs differently from aleatoric uncertainty, and equally across seeds."""
    if not run_predictions.has(runs, run_predictions.LOGITS):
        return ()
    in_its_place = [
        {
            silo: dataclasses.replace(
                seen, uncertainty={**seen.uncertainty, "epistemic": seen.uncertainty[run_predictions.LOGITS]}
            )
            for silo, seen in run.items()
        }
        for run in runs
    ]
    return (
        _named(two_things(in_its_place), f"aleatoric and {run_predictions.LOGITS}"),
        _named(seeds_agree(in_its_place), f"seeds, {run_predictions.LOGITS}"),
    )


def _named(finding: Finding, name: str) -> Finding:
    texts = finding.claim, finding.sentence, finding.facts if isinstance(finding, Uncorrected) else ""
    claim, sentence, facts = (text.replace(EPISTEMIC_NAME, LOGITS_NAME) for text in texts)
    return Uncorrected(name, claim, finding.verdict, sentence, finding.measured, facts)
