"""What tuning tries, and what it chooses, by the runs that are there so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...config.text import toml
from ...core import ConfigurationError
from ...files.schema.grid import MethodVariant, Sets, Setting
from .finished import FinishedRun
from .grid import Grid, PlannedRun

KILLED = "its process ended"
"""How a note begins of a run that could not leave one itself."""


@dataclass(frozen=True)
class Tuning:
    """The trials of a grid."""

    grid: Grid
    done: Callable[[PlannedRun], FinishedRun | None]
    """What a run has left, if it is finished."""
    failure: Callable[[PlannedRun], str | None]
    """Why a run failed, if it did."""

    def chosen(self, method: MethodVariant, setting: Setting) -> Sets | None:
        """The value that the method keeps under the setting; None while that is open, or if every trial failed.

        The best mean accuracy on validation data, then the best likelihood, then the first tried; a value with which
        a trial failed is out. A trial whose process was killed, as it may have been at any value, leaves the choice
        open.
        """
        if self.grid.tuning is None:
            return ()
        chosen = self._best([runs for _, runs in self.trials(method, setting)])
        if chosen is None or method.then is None:
            return chosen
        return self._best([runs for _, runs in self._refined(method, setting, chosen)])

    def _best(self, trials: Sequence[list[PlannedRun]]) -> Sets | None:
        failures = [self.failure(run) for runs in trials for run in runs if self.done(run) is None]
        if any(why is None or why.startswith(KILLED) for why in failures):
            return None
        scores = {runs[0].tuned: score for runs in trials if (score := self.score(runs))}
        return max(scores, key=lambda tuned: scores[tuned]) if scores else None

    def trials(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Every value of the plan's key that is tried so far, with its runs: those that every method tries, and where
        the best of them is the smallest or the largest, one three times as far, as often as the plan says."""
        found = self.grid.trials(method, setting)
        for _ in range(self.grid.tuning.extensions if self.grid.tuning else 0):
            further = self._beyond(method, setting, found)
            if further is None:
                break
            found = [*found, further]
        return found

    def _beyond(
        self, method: MethodVariant, setting: Setting, found: list[tuple[Any, list[PlannedRun]]]
    ) -> tuple[Any, list[PlannedRun]] | None:
        """A value three times as far as the best of those found, with its runs; None where that is not at an end, is
        not known yet, or its key cannot have such a value."""
        chosen = self._best([runs for _, runs in found])
        value = next((value for value, runs in found if runs[0].tuned == chosen), None)
        numbers = [value for value, _ in found if isinstance(value, int | float) and not isinstance(value, bool)]
        if value is None or len(numbers) < len(found) or value not in (min(numbers), max(numbers)):
            return None
        further = float(f"{value * 3 if value == max(numbers) else value / 3:.2g}")
        runs = self.grid.tries(method, setting, (self.grid.override(further),))
        return (further, runs) if further != value and _can_be(runs[0]) else None

    def _refined(self, method: MethodVariant, setting: Setting, chosen: Sets) -> list[tuple[Any, list[PlannedRun]]]:
        """What a method tries of a key of its own, with its runs."""
        then = method.then
        if then is None:
            return []
        return [(v, self.grid.tries(method, setting, (*chosen, f"{then.key}={toml(v)}"))) for v in then.values]

    def tried(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Every value that is tried so far, with its runs."""
        found = self.trials(method, setting)
        chosen = self._best([runs for _, runs in found]) if method.then else None
        if chosen is None or method.then is None:
            return found
        return [*found, *((f"{method.then.key}={v}", runs) for v, runs in self._refined(method, setting, chosen))]

    def score(self, runs: list[PlannedRun]) -> tuple[float, float] | None:
        """Mean over runs of accuracy on validation data, and of log-likelihood; None unless all of them are done."""
        found = [self.done(run) for run in runs]
        scores = [each.score(self.grid.judged) for each in found if each is not None]
        if len(scores) < len(runs):
            return None
        accuracies, likelihoods = zip(*scores, strict=True)
        return sum(accuracies) / len(runs), sum(likelihoods) / len(runs)


def _can_be(run: PlannedRun) -> bool:
    """Whether a value is one that its key can have."""
    try:
        run.config()
    except ConfigurationError:
        return False
    return True
