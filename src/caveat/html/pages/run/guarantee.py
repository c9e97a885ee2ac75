"""A run's promise about errors, and what became of it on the test split."""

from __future__ import annotations

from dataclasses import dataclass

from ....files.run_folder import RunFolder
from ....files.schema.summary import GuaranteeRecord, Metrics, Summary
from ...intervals import wilson
from ...tables import Cell, Table, column, table, words
from ...text import percent


@dataclass(frozen=True)
class PromiseKept:
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
    """What was promised and what the test split says of it; where there are figures, the verdict captions a table."""

    statement: str
    verdict: str
    alarm: bool
    table: Table | None


def guarantee_lines(run: RunFolder) -> list[str]:
    """For the terminal: the promise, and what the test split shows; empty for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return []
    found = run.summary.guarantee
    test = kept(run.summary) if found.guaranteed else None
    if test is None:
        return [f"guarantee: {found.statement}"]
    answered, wrong = _share(test.answered, test.inputs), _share(test.wrong, test.answered)
    return [f"guarantee: {found.statement}", f"on test:   {answered} answered, {wrong} wrong"]


def promise(run: RunFolder) -> Promise | None:
    """None for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return None
    found = run.summary.guarantee
    statement = _unbroken(f"{found.statement[:1].upper()}{found.statement[1:]}.")
    if not found.guaranteed:
        verdict = "So every input is abstained from; predictions keep the label of the model that was asked last."
        return Promise(statement, verdict, True, None)
    test = kept(run.summary)
    verdict, broken = _unbroken(_verdict(found, test)), test is not None and test.broken(found.risk)
    return Promise(statement, verdict, broken, _compared(found, test, verdict) if test else None)


def _unbroken(sentence: str) -> str:
    """With percent signs that stay on the line of their number."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def kept(summary: Summary) -> PromiseKept | None:
    """None without test figures."""
    pooled: Metrics = summary.pooled
    inputs = sum(silo.n_test or 0 for silo in summary.silos)
    if pooled.answered is None or not inputs:
        return None
    answered = round(pooled.answered * inputs)
    return PromiseKept(round((1 - (pooled.accuracy_answered or 0.0)) * answered), answered, inputs)


def _verdict(found: GuaranteeRecord, test: PromiseKept | None) -> str:
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


def _compared(found: GuaranteeRecord, test: PromiseKept, verdict: str) -> Table | None:
    above = "more errors than promised" if test.broken(found.risk) else ""
    errors: list[Cell | str] = [
        f"at most {100 * found.risk:.6g} %",
        _share(found.errors, found.answered),
        Cell(_share(test.wrong, test.answered), above),
    ]
    answered = ["", _share(found.answered, found.total), _share(test.answered, test.inputs)]
    columns = [
        words("", ["promised", "calibration", "test"]),
        column("errors among answered", errors, "all silos together"),
        column("answered", answered, "all silos together"),
    ]
    return table(columns, verdict)


def _share(part: int, whole: int) -> str:
    return f"{percent(part / whole)} ({part:,} of {whole:,})" if whole else "none"
