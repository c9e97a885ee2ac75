"""The only loop over rounds: the same for every method and every engine."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch

from ..core import (
    CaveatError,
    ConfigurationError,
    Method,
    Payload,
    Replies,
    Round,
    RunError,
    SiloContext,
    SiloId,
    State,
    Weights,
    horizon,
    is_evaluation,
    key,
)
from .norms import Admission, NormBound, Noted


class Transport(Protocol):
    """Carries a payload to silos, has them work on it, and brings back their updates."""

    @property
    def silos(self) -> Sequence[SiloId]:
        """All that take part, by name."""

    def exchange(
        self,
        t: int,
        address: str,
        payload: Payload,
        cohort: Sequence[SiloId],
        linear: Weights | None = None,
        admission: Admission | None = None,
    ) -> Replies:
        """Have the silos of the cohort carry out the work with that address in round t; `linear` is the round's.

        Updates count as `admission` hands them on, where it is given.
        """


@dataclass(frozen=True)
class Participation:
    """Which silos take part in a round: a share of them, drawn anew every round, and no fewer than a minimum."""

    seed: int
    share: float = 1.0
    least: int = 1

    def count(self, silos: int) -> int:
        """How many of so many silos a round asks."""
        # Rounded first: 0.07 of 100 is 7.000000000000001 in floating point.
        return min(silos, max(math.ceil(round(self.share * silos, 9)), self.least))

    def cohort(self, t: int, step: Round, silos: Sequence[SiloId]) -> Sequence[SiloId]:
        """The silos that round t asks, in the given order: a function of the seed and of t alone."""
        count = self.count(len(silos))
        if step.everyone or count >= len(silos):
            return silos
        generator = torch.Generator().manual_seed(key(self.seed, "cohort", t))
        return [silos[i] for i in sorted(torch.randperm(len(silos), generator=generator)[:count].tolist())]


@dataclass(frozen=True)
class FinishedRound:
    """A round that was carried out, for whoever records it."""

    t: int
    """Position in the schedule, skipped rounds counted."""
    number: int
    """How many rounds of training have been carried out, this one included."""
    step: Round
    sent: Payload
    cohort: Sequence[SiloId]
    replies: Replies
    """The updates of the cohort; of a linear round perhaps no more than their means and forms, see `Replies`."""
    noted: Mapping[SiloId, Noted] = field(default_factory=dict)
    """The silos whose updates exceeded the bound on norms or were far from all others."""


def run(
    method: Method,
    transport: Transport,
    context: SiloContext,
    server: State,
    *,
    participation: Participation,
    start: int = 0,
    stop: int | None = None,
    number: int = 0,
    after: Callable[[FinishedRound, State], None] = lambda done, server: None,
    ended: Callable[[], bool] = lambda: False,
    norms: NormBound | None = None,
) -> State:
    """Carry out rounds `start` to `stop` of the method's schedule; return the server's state after them.

    `number` rounds of training have gone before. `after` is called with every round carried out and the
    server's state after it. Once training has `ended`, what is left of it is skipped, up to its last round. `norms`
    bound what is counted of updates in rounds of training, and are added to.
    """
    trained = horizon(method.schedule())
    for t, step in islice(enumerate(method.schedule()), start, stop):
        if not step.when(server) or (t < trained and ended()):
            continue
        if is_evaluation(step.task):
            raise ConfigurationError(f"{step.name!r} is in a schedule, but its work is to see the test split")
        sent, cohort = step.broadcast(server), participation.cohort(t, step, transport.silos)
        admission = norms.admission(step, sent, context) if norms is not None else None
        looks = () if admission is None else (admission,)
        replies = transport.exchange(t, step.address, sent, cohort, step.linear, *looks)
        server = owned(_aggregated(t, step, server, replies, context), replies)
        number += step.trains
        if norms is not None and admission is not None:
            norms.remember(step, admission)
        noted = admission.noted() if admission is not None else {}
        after(FinishedRound(t, number, step, sent, cohort, replies, noted), server)
        # Replies lie in the memory of workers, which is used again in the next round if nobody has them any more.
        del sent, replies, admission, looks
    return server


def _aggregated(t: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    try:
        return step.aggregate(server, replies, context)
    except (CaveatError, LookupError):
        raise
    except Exception as error:
        told = f"the server failed in round {t}, {step.name!r}: {type(error).__name__}: {error}"
        raise RunError(f"{told}; if training has diverged, try a lower training.lr") from error


def owned(server: State, replies: Replies) -> State:
    """The server's state with copies of those tensors that lie in the memory of replies."""
    theirs = {
        tensor.untyped_storage().data_ptr()
        for update in replies.updates.values()
        for tensors in update.payload.values()
        for tensor in tensors.values()
    }
    return {
        group: {name: t.clone() if t.untyped_storage().data_ptr() in theirs else t for name, t in tensors.items()}
        for group, tensors in server.items()
    }
