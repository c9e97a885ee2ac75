"""Joining a finished federation: a silo carries out rounds of its schedule by itself, and nobody else changes.

The newcomer is sent what the finished server broadcasts, does a silo's work in some of the rounds of training and in
all others, and keeps what a silo keeps: normalisation, codebooks, heads and models of its own, its temperature, its
thresholds. What it would send is dropped where it is made, and the server's state stays as it is. So everything that is
shared is that of the finished federation, and all that a method keeps at a silo is fitted by the method's own work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from ..core import ConfigurationError, Payload, Round, SiloContext, State, Update, always, horizon, keep
from .base import Wrapper, find
from .estimators import Ensemble

UNCOUNTED = ("guarantee",)
"""Entries of a summary that hold for the silos that were counted."""


@dataclass(frozen=True)
class Joining(Wrapper):
    """The base as a newcomer goes through it, of whose rounds of training only some are carried out.

    A round keeps its place in the base's schedule, and with it learning rates, annealed weights and random numbers.
    The rounds of training lie in the middle of as many equal parts of training, so that whatever falls or grows over
    the base's rounds does so over these. Raises ConfigurationError for more rounds than the base has.
    """

    rounds: int = 5
    """Rounds of training, of each member where the base is an ensemble; 0 fits what follows training alone."""
    trained: int | None = None
    """Rounds of training that the federation made, where it ended before its last one."""

    def __post_init__(self) -> None:
        if not 0 <= self.rounds * self.members <= self.available:
            raise ConfigurationError(
                f"rounds = {self.rounds}, expected 0 to {self.available // self.members}: no more than the federation "
                "made itself",
                "rounds",
            )

    @property
    def members(self) -> int:
        """How many models are trained one after another."""
        ensemble = find(self.base, Ensemble)
        return 1 if ensemble is None else ensemble.ensemble_size

    @property
    def available(self) -> int:
        """The rounds of training that the federation made."""
        planned = sum(step.trains for step in self.base.schedule())
        return planned if self.trained is None else self.trained

    @property
    def chosen(self) -> frozenset[int]:
        """The rounds of training that are carried out, counted from 0 among those that the federation made."""
        count = self.rounds * self.members
        return frozenset((2 * i + 1) * self.available // (2 * count) for i in range(count))

    def schedule(self) -> Iterable[Round]:
        until, number, chosen = horizon(self.base.schedule()), 0, self.chosen
        for step in self.base.schedule():
            takes = not step.trains or number in chosen
            number += step.trains
            # Under the addresses of the base: a silo of a federation of machines knows no others.
            yield replace(
                step, task=partial(self.alone, until, step), aggregate=keep, when=always if takes else never,
                everyone=True, trains=step.trains and takes, linear=None, sums=None,
            )  # fmt: skip

    def alone(self, until: int, step: Round, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """A silo's work in a schedule of that horizon, of which it keeps its part and sends nothing."""
        fitted = self.base.fitted(context.module) if step.trains else None
        if fitted is not None and not fitted & dict(context.module.named_parameters()).keys():
            return Update({}, context.examples), state  # nothing is its own
        update, after = step.task(down, state, replace(context, horizon=until, joins=True, fitted=fitted))
        return Update({}, update.examples), after

    def outcome(self, server: State) -> dict[str, object]:
        found = self.base.outcome(server)
        return {name: value for name, value in found.items() if name not in UNCOUNTED}


def never(server: State) -> bool:
    """The condition of a round that is left out."""
    return False
