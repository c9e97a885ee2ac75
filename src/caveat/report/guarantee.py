"""A run's promise about errors, and what became of it on the test split."""

from __future__ import annotations

from dataclasses import dataclass

from .charts import wilson
from .folder import Run
from .records import Guarantee, Metrics, Summary
from .sections import Cell, Column, Table, table
from .tables import percent


@dataclass(frozen=True)
class Kept:
    """Errors among the answered test inputs of all silos together, whom the promise is about."""

    wrong: int
    answered: int
    inputs: int

    @property
    def risk(self) -> float | None:
        return self.wrong / self.answered if self.answered else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by Wilson."""
        return wilson(self.wrong, self.answered) if self.answered else (0.0, 1.0)

    def broken(self, promised: float) -> bool:
        """Whether there are more errors than promised, beyond what so few inputs leave open."""
        return self.interval[0] > promised


@dataclass(frozen=True)
class Promise:
    statement: str
    guaranteed: bool
    verdict: str
    broken: bool
    table: Table | None


def guarantee_lines(run: Run) -> list[str]:
    """For the terminal: the promise, and what the test split shows; empty for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return []
    found = run.summary.guarantee
    test = kept(run.summary) if found.guaranteed else None
    lines = [f"guarantee: {found.statement}"]
    if test:
        lines.append(
            f"on test:   {_share(test.answered, test.inputs)} answered, {_share(test.wrong, test.answered)} wrong"
        )
    return lines


def promise(run: Run) -> Promise | None:
    """None for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return None
    found = run.summary.guarantee
    statement = _unbroken(f"{found.statement[:1].upper()}{found.statement[1:]}.")
    if not found.guaranteed:
        verdict = "So every input is abstained from; predictions keep the label of the model that was asked last."
        return Promise(statement, False, verdict, False, None)
    test = kept(run.summary)
    verdict, broken = _unbroken(_verdict(found, test)), test is not None and test.broken(found.risk)
    return Promise(statement, True, verdict, broken, _compared(found, test) if test else None)


def _unbroken(sentence: str) -> str:
    """With percent signs that stay on the line of their number."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def kept(summary: Summary) -> Kept | None:
    """None without test figures."""
    pooled: Metrics = summary.pooled
    inputs = sum(silo.n_test or 0 for silo in summary.silos)
    if pooled.answered is None or not inputs:
        return None
    answered = round(pooled.answered * inputs)
    return Kept(round((1 - (pooled.accuracy_answered or 0.0)) * answered), answered, inputs)


def _verdict(found: Guarantee, test: Kept | None) -> str:
    if test is None:
        return _ABOUT
    if test.risk is None:
        return f"No test input was answered. {_ABOUT}"
    low, high = test.interval
    share = f"On the test split {percent(test.risk)} of the answered inputs are wrong "
    share += f"(95 % interval {percent(low)} to {percent(high)}), "
    if test.risk <= found.risk:
        return f"{share}within the promise. {_ABOUT}"
    if low <= found.risk:
        return f"{share}more than promised, though so few inputs leave it open. {_ABOUT}"
    unlucky = f"{100 * (1 - found.confidence):.6g} % of calibration samples"
    return f"{share}more than promised, as a promise at this confidence may for {unlucky}. {_ABOUT}"


_ABOUT = (
    "The promise is about inputs like the calibration inputs, silos mixed as there: neither about a silo by itself "
    "nor about inputs that silos do not know."
)


def _compared(found: Guarantee, test: Kept) -> Table:
    above = "more errors than promised" if test.broken(found.risk) else ""
    errors = [
        Cell(f"at most {100 * found.risk:.6g} %"),
        Cell(_share(found.errors, found.answered)),
        Cell(_share(test.wrong, test.answered), above),
    ]
    answered = [Cell(""), Cell(_share(found.answered, found.total)), Cell(_share(test.answered, test.inputs))]
    return table(
        [
            Column("", [Cell("promised"), Cell("calibration"), Cell("test")], words=True),
            Column("errors among answered", errors, "all silos together"),
            Column("answered", answered, "all silos together"),
        ]
    )


def _share(part: int, whole: int) -> str:
    return f"{percent(part / whole)} ({part:,} of {whole:,})" if whole else "none"
