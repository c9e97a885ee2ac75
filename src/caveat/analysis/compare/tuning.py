"""The trials of every method of a comparison, and the value that is chosen by them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...config.toml import toml
from ...core import ConfigurationError
from ...files.schema import MethodVariant, Sets, Setting
from .compared_run import FinishedRun
from .grid import Grid, PlannedRun

KILLED = "its process ended"
"""The beginning of the error of a run whose process was killed."""


@dataclass(frozen=True)
class Tuning:
    """The tuning of a grid: finished and open trials."""

    grid: Grid
    done: Callable[[PlannedRun], FinishedRun | None]
    """Returns a run's result if it is finished."""
    failure: Callable[[PlannedRun], str | None]
    """Returns a run's error if it failed."""

    def chosen(self, method: MethodVariant, setting: Setting) -> Sets | None:
        """Return the value chosen for a method under a setting; None while trials are open, or if every trial failed.

        The choice is the best mean accuracy (or CRPS, or Brier score) on validation data; ties go to the best
        likelihood, then to the first value. A value with a failed trial is excluded; a killed process, which may have
        another cause, leaves the choice open.
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
        """Return every value of the plan's key so far, with its runs: the values that every method tries and, while the
        best is the smallest or the largest, a value beyond it by a factor of three, as often as the plan allows."""
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
        """Return a value beyond the best one by a factor of three, with its runs; None if the best value is not at an
        end or not known yet, or if the key does not allow such a value."""
        chosen = self._best([runs for _, runs in found])
        value = next((value for value, runs in found if runs[0].tuned == chosen), None)
        numbers = [value for value, _ in found if isinstance(value, int | float) and not isinstance(value, bool)]
        if value is None or len(numbers) < len(found) or value not in (min(numbers), max(numbers)):
            return None
        further = float(f"{value * 3 if value == max(numbers) else value / 3:.2g}")
        runs = self.grid.tries(method, setting, (self.grid.override(further),))
        return (further, runs) if further != value and _can_be(runs[0]) else None

    def _refined(self, method: MethodVariant, setting: Setting, chosen: Sets) -> list[tuple[Any, list[PlannedRun]]]:
        """Return the values of a method's own key, with their runs."""
        then = method.then
        if then is None:
            return []
        return [(v, self.grid.tries(method, setting, (*chosen, f"{then.key}={toml(v)}"))) for v in then.values]

    def tried(self, method: MethodVariant, setting: Setting) -> list[tuple[Any, list[PlannedRun]]]:
        """Return every value tried so far, with its runs."""
        found = self.trials(method, setting)
        chosen = self._best([runs for _, runs in found]) if method.then else None
        if chosen is None or method.then is None:
            return found
        return [*found, *((f"{method.then.key}={v}", runs) for v, runs in self._refined(method, setting, chosen))]

    def score(self, runs: list[PlannedRun]) -> tuple[float, float] | None:
        """Return means over runs of `FinishedRun.score`; None unless all runs are done."""
        found = [self.done(run) for run in runs]
        scores = [each.score(self.grid.judged) for each in found if each is not None]
        if len(scores) < len(runs):
            return None
        accuracies, likelihoods = zip(*scores, strict=True)
        return sum(accuracies) / len(runs), sum(likelihoods) / len(runs)


def _can_be(run: PlannedRun) -> bool:
    try:
        run.config()
    except ConfigurationError:
        return False
    return True
