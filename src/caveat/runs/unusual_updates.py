"""Bounds on the norms of updates, records of unusual updates, and advice against malicious silos."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core import SiloId, keep, nothing
from ..core.silo import SiloInfo
from ..engines.norm_bounding import NOTHING, TIMES, NormBound, Noted
from ..engines.rounds import FinishedRound
from ..files import About
from ..files.schema import LargestPart, NotedUpdate, RunState
from .base import BaseRun


def norms_of(run: BaseRun, run_state: RunState) -> NormBound | None:
    """Return the norm bounds of a run, from its checkpoint; None if updates are not checked."""
    if not run.spec.robust.watches or not run.method.federated:
        return None
    return NormBound(run.spec.robust.bounds, dict(run_state.norms))


def noted_rows(about: About, done: FinishedRound) -> Iterator[NotedUpdate]:
    """Yield a row for each silo whose update in a round is noteworthy."""
    for silo, noted in done.noted.items():
        numbers = {"times_bound": noted.times_bound, "times_far": noted.times_far}
        known = {key: float(f"{v:.3g}") for key, v in numbers.items() if v is not None and math.isfinite(v)}
        yield NotedUpdate.model_validate({**about, "silo": silo, "noted": description(noted), **known})


def description(noted: Noted) -> str:
    """Return a description of a noteworthy update."""
    parts = []
    if (times := noted.times_bound) is not None:
        how = "was scaled down to it" if times <= NOTHING else "counted as no change"
        about = f"the norm of its update was {times:.3g} times the bound ({TIMES:g} x the usual norm); it {how}"
        parts.append(about if math.isfinite(times) else f"its update was not finite; it {how}")
    if (times := noted.times_far) is not None:
        parts.append(f"its update was {times:.3g} times as far from the center as the median silo's")
    return "; ".join(parts)


def rollback_advice(folder: Path, to: int | None = None) -> str:
    """Return how to roll back to an earlier round by hand."""
    if to is None:
        return (
            "if a silo is the cause, exclude it and continue: this round was not completed; `caveat rollback "
            f"{folder}` lists earlier rounds to go back to"
        )
    return (
        f"to undo round {to + 1}, stop the run, roll back with `caveat rollback {folder} --to {to}`, and exclude the "
        "silo"
    )


def largest_part(done: FinishedRound, cards: Mapping[SiloId, SiloInfo]) -> LargestPart | None:
    """Return the silo with the largest share of a round's sum; None without a sum."""
    if (sums := done.step.sums) is None:
        return None
    counts = {
        silo: cards[silo].examples[sums.split]
        for silo, update in done.replies.updates.items()
        if any(bool(tensor.any()) for tensors in update.payload.values() for tensor in tensors.values())
    }
    if not (total := sum(counts.values())):
        return None
    silo = max(sorted(counts), key=counts.__getitem__)
    return LargestPart(phase=done.step.name, split=sums.split, silo=silo, share=counts[silo] / total)


def say_unbounded(run: BaseRun) -> list[str]:
    """Return sentences about what norm bounding does not cover, for methods with norm bounding."""
    robust, steps = run.spec.robust, list(run.complete_method.schedule())
    if not robust.watches or not run.method.federated:
        return []
    notes = []
    if robust.bounds and not any(step.trains and step.origin is not nothing for step in steps):
        notes.append(
            f"federation.robust = 'bound' has no effect on {run.method.name}, whose silos do not send changes of what "
            "they were sent: a malicious silo is not limited"
        )
    sums = [step.name for step in steps if not step.trains and step.aggregate is not keep and step.origin is None]
    if run.counts is not None and sums:
        notes.append(
            f"federation.robust covers training rounds only: sums of {', '.join(dict.fromkeys(sums))} are aggregated "
            "if they are possible for the reported number of inputs, and a malicious silo can change the result by "
            "its share"
        )
    return notes
