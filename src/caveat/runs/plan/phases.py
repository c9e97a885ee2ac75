"""The schedule of a method as phases: rounds of one kind that follow each other, and how many of them there will be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from ...core import Method, Round


@dataclass(frozen=True)
class Phase:
    """Rounds of one kind that follow each other in a schedule."""

    step: Round
    begin: int
    """The schedule's position of the first one."""
    count: int
    least: int
    """How many of them there are for certain; others depend on what is learnt."""

    @property
    def name(self) -> str:
        return self.step.name


def phases(method: Method) -> list[Phase]:
    """A method's schedule, with at least as many rounds as it has whatever is learnt.

    A round whose condition holds of no state at all depends on nothing. Of the others those are certain that come until
    the first one which compares, rather than trains: its outcome is what the conditions are about.
    """
    found: list[Phase] = []
    position, compared = 0, False
    for _, group in groupby(method.schedule(), key=lambda step: (step.address, step.trains)):
        steps = list(group)
        first, count = steps[0], len(steps)
        certain = is_unconditional(first) or not compared
        found.append(Phase(first, position, count, count if certain else 0))
        compared = compared or not (first.trains or is_unconditional(first))
        position += count
    return found


def is_unconditional(step: Round) -> bool:
    """Whether a round is carried out whatever the server's state is."""
    try:
        return bool(step.when({}))
    except Exception:  # whatever a condition does without what it looks at
        return False


def stopped_after(found: Iterable[Phase], least: int | None) -> list[Phase]:
    """The phases where training may end after so many rounds of it."""
    if least is None:
        return list(found)
    cut: list[Phase] = []
    for phase in found:
        certain = min(phase.least, least) if phase.step.trains else phase.least
        least -= certain if phase.step.trains else 0
        cut.append(replace(phase, least=certain))
    return cut
