"""Whether epistemic uncertainty tells how much models trained anew disagree, beyond what aleatoric uncertainty tells.

Where a model is in doubt, so are others, and they differ there: any entropy correlates with disagreement. What is asked
of epistemic uncertainty is therefore the partial correlation, at equal aleatoric uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...files.schema.audit import Finding
from ...uncertainty import plug_in_mutual_information
from ...uncertainty.distributions import ranks
from .findings import SILENT, decide, open_because, silent
from .observations import Jackknifed, Observed, partial_correlation, stacked, without_each

ADDS = 0.2
"""Rank correlation with the disagreement of a few models, at equal aleatoric uncertainty, below which epistemic
uncertainty adds little. Three models measure disagreement with an error that alone lowers a perfect correlation to 0.6
or 0.8, hence so little is asked; one score that says no more than an entropy comes to 0.1 with many seeds, since
entropies of several models say more of their disagreement than that of one."""
NAMES, BEYOND = ("epistemic", "aleatoric"), "beyond"
TWO = " Of two seeds none can be left out to see what this rests on: take more."
Ranks = NDArray[np.float64]
"""Ranks of a silo's N test inputs, (N,), with mean 0 and norm 1: products of two add up to Spearman's correlation."""


def disagreement(runs: Sequence[Observed]) -> Finding:
    """Whether an input's epistemic uncertainty tells how much models trained anew disagree about it; a run per seed.

    Against their Jensen-Shannon divergence (Juergens et al., ICML 2024, compare with such a reference distribution).
    """
    title = "disagreement"
    claim = "epistemic uncertainty is high where models trained anew would say something else, however ambiguous"
    if silent(runs) or len(runs) < 2:
        reason = SILENT if silent(runs) else "One seed has nothing to disagree with."
        return Finding(title, claim, "cannot say", reason, {})
    ranks = [
        {silo: {name: _ranks(seen.uncertainty[name].numpy()) for name in NAMES} for silo, seen in run.items()}
        for run in runs
    ]
    whole = _correlations(runs, ranks, range(len(runs)))
    if whole is None:
        return Finding(title, claim, "cannot say", "There is nothing to rank: it is constant over the test inputs.", {})
    # Two seeds less one do not disagree.
    fewer = without_each(len(runs)) if len(runs) > 2 else []
    left = [found for kept in fewer if (found := _correlations(runs, ranks, kept)) is not None]
    known = left if len(left) == len(fewer) else []
    epistemic, aleatoric, beyond = (
        Jackknifed(whole[name], tuple(found[name] for found in known)) for name in (*NAMES, BEYOND)
    )
    verdict = decide(*beyond.interval, ADDS, "above")
    sentence = (
        f"Its rank correlation with the disagreement of {len(runs)} models trained anew is {epistemic.mean:z.2f}, that "
        f"of aleatoric uncertainty {aleatoric.mean:z.2f}; at equal aleatoric uncertainty {beyond.mean:z.2f} are left."
    )
    if verdict == "does not hold":
        sentence += " It hardly tells more of what training again would change than aleatoric uncertainty does."
    measured = {
        "rank_correlation": epistemic.record, "aleatoric": aleatoric.mean, "partial": beyond.record, "limit": ADDS,
    }  # fmt: skip
    why = TWO if len(runs) == 2 else open_because(verdict, len(runs), beyond, ADDS, (-1, 1))
    return Finding(title, claim, verdict, sentence + why, measured)


def _correlations(
    runs: Sequence[Observed], ranks: Sequence[dict[str, dict[str, Ranks | None]]], kept: Sequence[int]
) -> dict[str, float] | None:
    """Of the seeds `kept`, the mean over them and over silos: correlations of either uncertainty with their
    disagreement, and the partial one. None if a seed has no silo in which all three rank anything.
    """
    chosen = [runs[i] for i in kept]
    real = {silo: _ranks(plug_in_mutual_information(stacked(chosen, silo)).numpy()) for silo in chosen[0]}
    by_seed: list[dict[str, float]] = []
    for seed in kept:
        silos = []
        for silo, own in ranks[seed].items():
            epistemic, aleatoric, between = own["epistemic"], own["aleatoric"], real[silo]
            if epistemic is None or between is None:
                continue
            said = float(epistemic @ between)
            # A constant says nothing of anything.
            other, shared = (0.0, 0.0) if aleatoric is None else (aleatoric @ between, aleatoric @ epistemic)
            partial = partial_correlation(said, float(other), float(shared))
            silos.append({"epistemic": said, "aleatoric": float(other), BEYOND: partial})
        if not silos:
            return None
        by_seed.append({name: float(np.mean([each[name] for each in silos])) for name in silos[0]})
    return {name: float(np.mean([each[name] for each in by_seed])) for name in by_seed[0]}


def _ranks(values: NDArray[np.float64]) -> Ranks | None:
    """None where values are all the same, or not finite."""
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    centred = ranks(values) - (len(values) + 1) / 2
    return np.asarray(centred / np.linalg.norm(centred), dtype=np.float64)
