"""What a run will cost: rounds, steps, bytes, memory, time, and what would make it cheaper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..local import LocalRun
from .cheaper import Saving, savings
from .encoding import encoding_of
from .estimate import NOTHING, CostSheet, Needs, PhaseCost, Span
from .rehearsal import PER_WORKER, rehearse
from .sample import sizes_of, typical
from .side_by_side import faster, gain_of


@dataclass(frozen=True)
class MethodCost:
    """What one method costs. Rounds, steps, bytes and seconds are spans, from the least to the most that they may be.

    Bytes of phases are exact where the shapes of messages do not depend on data, as those of all methods that come with
    caveat do not.
    """

    method: str
    silos: int
    """That take part."""
    looked_at: int
    """How many of them were looked at: all, or some of a population."""
    examples: tuple[int, int, int]
    """Training examples of a silo: least, median, most."""
    parameters: int
    """Numbers that the method's model learns."""
    workers: int
    gain: float | None
    """How many times as fast rounds of training are as the silos are trained side by side; None where they are not."""
    phases: tuple[PhaseCost, ...]
    seconds: Span
    """From when the data are there until the run is finished."""
    seconds_beside: float
    """Those of them that are no phase's: the start, the gallery, files."""
    seconds_encoding: float
    """Those of them in which a frozen encoder's rows are computed."""
    needs: Needs

    def total(self, what: str, *kinds: str) -> Span:
        """A sum over phases, of some kinds or of all, such as `total("total_up", "evaluation")`."""
        return sum((getattr(each, what) for each in self.phases if not kinds or each.kind in kinds), NOTHING)


@dataclass(frozen=True)
class Plan:
    """What a run will cost, and methods beside it."""

    methods: tuple[MethodCost, ...]
    """The run's own first."""
    savings: tuple[Saving, ...]
    """What would make it cheaper, largest first. Empty where nothing would by much."""

    @property
    def seconds(self) -> Span:
        """Of all methods, from the least to the most."""
        return sum((each.seconds for each in self.methods), NOTHING)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, as `caveat plan --json` prints them: spans are [least, most]."""
        return {"seconds": self.seconds, **asdict(self)}


def plan(run: LocalRun, beside: Callable[[int], Iterable[LocalRun]] = lambda rounds: ()) -> Plan:
    """What a run that was checked will cost, by a rehearsal. Nothing is written to its folder.

    `beside` gives the runs beside it, of as many rounds of training as it takes itself. Raises RunError if a silo fails
    in the rehearsal, as it would in the run.
    """
    sheets = [(run, sheet_of(run))]
    rounds = sheets[0][1].rounds
    for other in beside(round(rounds.most)):
        sheets.append((other, replace(sheet_of(other), least=round(rounds.least))))
    saved: dict[str, Saving] = {}
    for each, sheet in sheets:
        for saving in savings(each, sheet):
            known = saved.get(saving.key, replace(saving, seconds=0.0))
            saved[saving.key] = replace(known, seconds=known.seconds + saving.seconds)
    methods = tuple(cost_on(sheet, each.workers) for each, sheet in sheets)
    return Plan(methods, tuple(sorted(saved.values(), key=lambda each: -each.seconds)))


def sheet_of(run: LocalRun) -> CostSheet:
    """What a run was seen to take."""
    sizes = sizes_of(run)
    sample = typical(sizes, PER_WORKER * run.workers)
    sheet = CostSheet(run.spec, rehearse(run, sample), sizes, encoding_of(run, sizes, sample[0]))
    gain = gain_of(run, sheet)
    return sheet if gain is None else faster(sheet, gain)


def cost_on(sheet: CostSheet, workers: int) -> MethodCost:
    """What a sheet comes to."""
    train = sorted(sheet.sizes.train)
    return MethodCost(
        method=sheet.spec.method.name,
        silos=sheet.sizes.population,
        looked_at=len(train),
        examples=(train[0], train[len(train) // 2], train[-1]),
        parameters=sheet.rehearsal.parameters,
        workers=workers,
        gain=sheet.gain,
        phases=tuple(sheet.phases()),
        seconds=sheet.seconds,
        seconds_beside=sheet.beside(),
        seconds_encoding=sheet.encoding_seconds,
        needs=sheet.needs(workers),
    )
