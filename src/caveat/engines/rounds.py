"""The loop over rounds, shared by all methods and engines."""

import math
import traceback
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
from ..core.errors import DIVERGED, HUGE
from .norm_bounding import Admission, NormBound, Noted


class Transport(Protocol):
    """Sends payloads to silos, lets them run tasks, and collects their updates."""

    @property
    def silos(self) -> Sequence[SiloId]:
        """All silos that take part, by name."""

    def exchange(
        self,
        t: int,
        address: str,
        payload: Payload,
        cohort: Sequence[SiloId],
        linear: Weights | None = None,
        admission: Admission | None = None,
    ) -> Replies:
        """Let the silos of the cohort run the task with that address in round t; `linear` is `Round.linear`. Updates
        are admitted by `admission`, if given."""


@dataclass(frozen=True)
class Participation:
    """Selects the silos of a round: a fraction of them, drawn every round, with a minimum number."""

    seed: int
    share: float = 1.0
    least: int = 1

    def count(self, silos: int) -> int:
        """Return the number of silos in a round, out of `silos`."""
        # Rounded first: 0.07 of 100 is 7.000000000000001 in floating point.
        return min(silos, max(math.ceil(round(self.share * silos, 9)), self.least))

    def cohort(self, t: int, step: Round, silos: Sequence[SiloId]) -> Sequence[SiloId]:
        """Return the silos of round t, in the given order: a function of the seed and of t only."""
        count = self.count(len(silos))
        if step.everyone or count >= len(silos):
            return silos
        generator = torch.Generator().manual_seed(key(self.seed, "cohort", t))
        return [silos[i] for i in sorted(torch.randperm(len(silos), generator=generator)[:count].tolist())]


@dataclass(frozen=True)
class FinishedRound:
    """A completed round."""

    t: int
    """Position in the schedule, including skipped rounds."""
    number: int
    """Number of training rounds so far, including this one."""
    step: Round
    sent: Payload
    cohort: Sequence[SiloId]
    replies: Replies
    """The updates of the cohort; for a linear round, perhaps only their means and forms, see `Replies`."""
    noted: Mapping[SiloId, Noted] = field(default_factory=dict)
    """The silos whose updates exceeded the norm bound or were far from all others."""


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
    """Run rounds `start` to `stop` of the method's schedule; return the server's state after them.

    `number` training rounds were completed before. `after` is called with every completed round and the server's state.
    Once training has `ended`, its remaining rounds are skipped. `norms` bound the updates of training rounds, and are
    updated.
    """
    trained = horizon(method.schedule())
    for t, step in islice(enumerate(method.schedule()), start, stop):
        if not step.when(server) or (t < trained and ended()):
            continue
        if is_evaluation(step.task):
            raise ConfigurationError(f"task {step.name!r} is in the schedule, but accesses the test split")
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
        # Replies are in the memory of workers, which is reused in the next round if no reference to it is left.
        del sent, replies, admission, looks
    return server


def _aggregated(t: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    try:
        return step.aggregate(server, replies, context)
    except (CaveatError, LookupError):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = (
            f"the server failed in round {t + 1} of the schedule, task {step.name!r}: {type(error).__name__}: {error}"
        )
        why = (
            f"; received weights as large as {largest:.2g}: {DIVERGED}" if (largest := _largest(replies)) > HUGE else ""
        )
        raise RunError(f"{text}{why} [at {where.name}, {where.filename}, line {where.lineno}]") from error


def _largest(replies: Replies) -> float:
    """Return the largest absolute value of the floating-point tensors that silos sent, or of their sums."""
    payloads = [replies.means] if replies.means is not None else [each.payload for each in replies.updates.values()]
    tensors = (tensor for payload in payloads for group in payload.values() for tensor in group.values())
    return max((float(each.abs().max()) for each in tensors if each.is_floating_point() and each.numel()), default=0.0)


def owned(server: State, replies: Replies) -> State:
    """Return the server's state, with copies of tensors that share memory with replies."""
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
