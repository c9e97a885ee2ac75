"""What a run keeps and says of silos that may lie."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core import SiloId, keep, nothing
from ..core.silo import SiloInfo
from ..engines.norms import NOTHING, TIMES, NormBound, Noted
from ..engines.rounds import FinishedRound
from ..files.ledger import About
from ..files.schema import LargestPart, NotedUpdate, RunState
from .base import BaseRun


def norms_of(run: BaseRun, run_state: RunState) -> NormBound | None:
    """What looks at a run's updates, with the norms that its checkpoint has; None where nothing is to."""
    if not run.spec.robust.watches or not run.method.federated:
        return None
    return NormBound(run.spec.robust.bounds, dict(run_state.norms))


def noted_rows(about: About, done: FinishedRound) -> Iterator[NotedUpdate]:
    """A row for each silo of a round of which there is something to say."""
    for silo, noted in done.noted.items():
        numbers = {"times_bound": noted.times_bound, "times_far": noted.times_far}
        known = {key: float(f"{v:.3g}") for key, v in numbers.items() if v is not None and math.isfinite(v)}
        yield NotedUpdate.model_validate({**about, "silo": silo, "noted": told(noted), **known})


def told(noted: Noted) -> str:
    """What there is to say of an update, in words."""
    parts = []
    if (times := noted.times_bound) is not None:
        how = "was scaled down to it" if times <= NOTHING else "counts as no change"
        about = f"its update was {times:.3g} times as long as the bound ({TIMES:g} x the usual norm) and {how}"
        parts.append(about if math.isfinite(times) else f"its update was not finite and {how}")
    if (times := noted.times_far) is not None:
        parts.append(f"its update was {times:.3g} times as far from the middle of all as the median silo's")
    return "; ".join(parts)


def going_back(folder: Path, to: int | None = None) -> str:
    """What to type to have a run go on after an earlier round: nothing goes back by itself."""
    if to is None:
        return (
            "if a silo is the cause: this round has not counted, and the run goes on without the silo once it is left "
            f"out; `caveat rollback {folder}` lists the rounds that it can go back to"
        )
    return (
        f"round {to + 1} has counted: to have it not count, stop the run, then `caveat rollback {folder} --to {to}`, "
        "and leave the silo out"
    )


def largest_part(done: FinishedRound, cards: Mapping[SiloId, SiloInfo]) -> LargestPart | None:
    """Whose inputs most of a round's sum are of; None where nothing is added up, or by nobody."""
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
    """What a silo that lies can move as it likes, a sentence each, for whoever runs a method with a bound on norms."""
    robust, steps = run.spec.robust, list(run.complete_method.schedule())
    if not robust.watches or not run.method.federated:
        return []
    told = []
    if robust.bounds and not any(step.trains and step.origin is not nothing for step in steps):
        told.append(
            f"federation.robust = 'bound' bounds nothing of {run.method.name}, whose silos send no changes of what "
            "they are sent: a silo that lies moves what it likes"
        )
    sums = [step.name for step in steps if not step.trains and step.aggregate is not keep and step.origin is None]
    if run.counts is not None and sums:
        told.append(
            f"federation.robust is about rounds of training: what silos send in {', '.join(dict.fromkeys(sums))} is "
            "counted if it can be a sum over as many inputs as they say to have, and a silo that lies can move what "
            "all get from it by its share of these"
        )
    return told
