"""What the report of a run says about the use of one silo's model, for the page of its predictions."""

from ...files import RunFolder
from ..predicted_inputs import NOTHING, SiloAdvice
from .advice import BESIDE, against, below, shortfall
from .classification import ALONE
from .confidence import confidence
from .rerun_commands import data_first
from .silo_baselines import alone_at, behind_alone, worse_alone
from .trust import trust


def at_silo(run: RunFolder, silo: str) -> SiloAdvice:
    """Return the advice of a finished run's report."""
    if run.summary is None:
        return NOTHING
    unusual = any(each.of_data and silo in (each.silos or [silo]) for each in run.summary.warnings)
    check, why = data_first(run) if unusual else None, against(run, silo) or _others_better(run, silo)
    if run.quantity:
        return SiloAdvice(why, check=check)
    first, found = trust(run), confidence(run)
    beside = not why and first is not None and any(step.striptags().startswith(BESIDE) for step in first.advice)
    return SiloAdvice(why, beside, bool(found and found.kind == "bad"), check)


def _others_better(run: RunFolder, silo: str) -> str:
    """Return the advice that a simple model or training alone is better; empty if neither is known to be better."""
    if early := below(run):
        return f"Do not use it yet: {shortfall(early)}."
    if behind_alone(run):
        return f"Use training alone (method {ALONE}) instead, which is better than this federation."
    return str(alone_at(run, [silo]).striptags()) if silo in worse_alone(run) else ""
