"""Join a finished federation: a silo runs rounds of its schedule alone, and nothing changes for other silos.

The silo receives the broadcast of the finished server, runs its client tasks in some training rounds and in all other
rounds, and keeps its state: normalization, codebooks, heads, local models, temperature, thresholds. Its updates are
dropped, and the server's state does not change. So everything shared comes from the finished federation, and everything
that a method keeps at a silo is fitted by the method's own client task.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from ..core import ConfigurationError, Payload, Round, SiloContext, State, Update, always, horizon, keep
from .base import Wrapper, find
from .ensembles import Ensemble

UNCOUNTED = ("guarantee",)
"""Summary entries that hold only for the silos that took part."""


@dataclass(frozen=True)
class Joining(Wrapper):
    """The base for a late-joining silo, with only some of its training rounds.

    A round keeps its position in the base's schedule, and with it learning rates, annealed weights and random numbers.
    The training rounds are spread evenly over the base's, so schedules of learning rates and weights keep their course.
    Raises ConfigurationError for more rounds than the base has.
    """

    rounds: int = 5
    """Number of training rounds, of each member if the base is an ensemble; 0 only runs the rounds after training."""
    trained: int | None = None
    """Number of training rounds of the federation, if it ended before its last one."""

    def __post_init__(self) -> None:
        if not 0 <= self.rounds * self.members <= self.available:
            raise ConfigurationError(
                f"rounds = {self.rounds}, expected 0 to {self.available // self.members}, the "
                "federation's number of training rounds",
                "rounds",
            )

    @property
    def members(self) -> int:
        """The number of models trained one after another."""
        ensemble = find(self.base, Ensemble)
        return 1 if ensemble is None else ensemble.ensemble_size

    @property
    def available(self) -> int:
        """The number of training rounds of the federation."""
        planned = sum(step.trains for step in self.base.schedule())
        return planned if self.trained is None else self.trained

    @property
    def chosen(self) -> frozenset[int]:
        """The training rounds to run, counted from 0 among the federation's."""
        count = self.rounds * self.members
        return frozenset((2 * i + 1) * self.available // (2 * count) for i in range(count))

    def schedule(self) -> Iterable[Round]:
        until, number, chosen = horizon(self.base.schedule()), 0, self.chosen
        for step in self.base.schedule():
            takes = not step.trains or number in chosen
            number += step.trains
            # With the base's addresses, because a silo on another machine knows no others.
            yield replace(
                step, task=partial(self.alone, until, step), aggregate=keep, when=always if takes else never,
                everyone=True, trains=step.trains and takes, linear=None, sums=None,
            )  # fmt: skip

    def alone(self, until: int, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run a client task in a schedule of horizon `until`; keep its state and send nothing."""
        fitted = self.base.fitted(context.module) if step.trains else None
        if fitted is not None and not fitted & dict(context.module.named_parameters()).keys():
            return Update({}, context.examples), state  # it keeps no state
        update, after = step.task(down, state, replace(context, horizon=until, joins=True, fitted=fitted))
        return Update({}, update.examples), after

    def outcome(self, server: State) -> dict[str, object]:
        found = self.base.outcome(server)
        return {name: value for name, value in found.items() if name not in UNCOUNTED}


def never(server: State) -> bool:
    """Return False: the condition of a skipped round."""
    return False
