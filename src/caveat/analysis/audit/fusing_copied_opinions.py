"""The second experiment of an audit: opinions fused with copies of themselves."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...files.schema import Finding
from ...uncertainty import opinions
from .claim_tests import decide, open_because
from .correction import Uncorrected, p_value
from .run_predictions import Observation, Observed, has
from .seed_statistics import Spread, mean_of_known

Rule = Callable[[Tensor, Tensor], Tensor]
Row = dict[str, float | None]
RULES: dict[str, Rule] = {"Dempster's rule": opinions.dempster, "averaging": opinions.averaging}
COPIES = 5
UNCHANGED = 0.9
"""Minimum share of its vacuity that an opinion keeps if copies do not count as evidence."""
NO_DIRICHLET = "These predictions are not Dirichlet distributions."
VACUOUS = 0.99
"""Vacuity above which an opinion has no evidence."""


def log_evidence(observation: Observation) -> Tensor:
    """Return (N, K) log-evidence of each class, -inf for none: alpha = K p / vacuity, less the prior's 1. p is
    uncalibrated, because a temperature changes probabilities but not evidence."""
    probs = observation.probs if observation.uncalibrated is None else observation.uncalibrated
    vacuity = observation.uncertainty["vacuity"].clamp_min(torch.finfo(torch.float64).tiny)
    log_alpha = probs.log() + math.log(probs.shape[-1]) - vacuity.log()[:, None]
    positive = log_alpha.clamp_min(1e-300)
    return torch.where(log_alpha > 0, positive + torch.log(-torch.expm1(-positive)), -torch.inf)


def with_copies(own: Tensor, rule: Rule) -> list[Row]:
    """Fuse 1 to 5 copies of opinions (N, K), given as log-evidence; return mean vacuity and confidence. Also return the
    share of vacuity that is kept, a geometric mean over opinions with evidence; None without such opinions."""
    fused, before = own, opinions.log_vacuity(own)
    holding, rows = before < math.log(VACUOUS), []
    for copies in range(1, COPIES + 1):
        if copies > 1:
            fused = rule(fused, own)
        kept = (opinions.log_vacuity(fused) - before)[holding]
        rows.append({
            "copies": copies,
            "vacuity": float(opinions.vacuity(fused).mean()),
            "confidence": float(opinions.log_alpha(fused).softmax(-1).amax(-1).mean()),
            "kept": float(kept.mean().exp()) if len(kept) else None,
        })  # fmt: skip
    return rows


def no_opinions(runs: Sequence[Observed]) -> str | None:
    """Return why the predictions of runs have no opinions to fuse; None if they have opinions."""
    return None if has(runs, "vacuity") else NO_DIRICHLET


def fused_with_copies(runs: Sequence[Observed]) -> dict[str, list[list[Row]]]:
    """Return per rule and seed a row for each number of copies, means over silos, for runs with opinions."""
    return {name: [_mean([with_copies(log_evidence(o), rule) for o in run.values()]) for run in runs]
            for name, rule in RULES.items()}  # fmt: skip


def _mean(silos: Sequence[Sequence[Row]]) -> list[Row]:
    return [{key: mean_of_known(row[key] for row in rows) for key in rows[0]} for rows in zip(*silos, strict=True)]


def copies_are_no_evidence(name: str, by_seed: Sequence[Sequence[Row]] | str) -> Finding:
    """Test whether a rule leaves an opinion unchanged when fusing it with its own copies."""
    title, claim = f"fusion by {name}", f"an opinion that {name} fuses with copies of itself does not change"
    if isinstance(by_seed, str):
        return Finding(title, claim, "does not apply", by_seed, {})
    shares = [share for rows in by_seed if (share := rows[-1]["kept"]) is not None]
    if len(shares) < len(by_seed):
        return Finding(title, claim, "cannot say", "These opinions have no evidence.", {})
    kept = Spread(tuple(shares))
    verdict = decide(*kept.interval, UNCHANGED, "above")
    first, last = _mean([[rows[0], rows[-1]] for rows in by_seed])
    facts = (
        f"Fused from {COPIES} copies, an opinion with evidence keeps {kept.mean:.2g} of its vacuity (geometric "
        f"mean); over all test inputs mean vacuity goes from {first['vacuity']:.2g} to {last['vacuity']:.2g}, mean "
        f"confidence from {first['confidence']:.2f} to {last['confidence']:.2f}."
    )
    why = open_because(verdict, len(by_seed), kept, UNCHANGED, (0, 1))
    if verdict == "does not hold":
        why = " Copies count as new evidence: do not fuse models that share data, an encoder or a start."
    measured: dict[str, Any] = {
        "vacuity_kept": kept.record,
        "limit": UNCHANGED,
        "by_copies": [list(r) for r in by_seed],
        **p_value(kept, UNCHANGED),
    }
    return Uncorrected(title, claim, verdict, facts + why, measured, facts)
