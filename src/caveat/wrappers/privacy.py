"""What a user may ask to be done for the privacy of silos: a configuration's `[privacy]` section.

Clipping and noise (`caveat.wrappers.private`) amount to an epsilon of (epsilon, delta)-differential privacy. Two runs
are neighbours if they differ in one silo, whose updates in all rounds are zero in one of them: a clipped update moves
the sum by the clip at most. If they differ in one row of a silo that takes part in both, its update is clipped in both
and may point the other way: the sum moves by twice the clip, as if there were half the noise. Rounds are composed by
Renyi differential privacy (Mironov, CSF 2017), by Google's `dp-accounting`; no amplification by sampling is counted,
since everybody may know who took part.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Protocol

from pydantic import Field

from ..core import ConfigurationError, Method, SiloId
from ..core.settings import LARGE, frozen_settings
from .private import Private


def epsilon(noise: float, rounds_replies: Sequence[int], silos: int, delta: float) -> float:
    """Epsilon of a silo towards whoever sees the sums only: users of the model, and the other silos.

    `rounds_replies` are the numbers of replies, the silo's own included, in each round of training that the silo took
    part in; `noise` and `silos` are those of `Private`, `delta` is between 0 and 1. Another silo knows its own noise,
    so that m replies hide each other with that of m - 1. Infinite if a round had no noise, 0 if there was none.
    Raises ConfigurationError for a delta out of range, and if `dp-accounting` is not installed.
    """
    return composed((noise * math.sqrt((replies - 1) / silos) for replies in rounds_replies), delta)


def epsilon_against_server(noise: float, rounds: int, silos: int, delta: float) -> float:
    """Epsilon of a silo towards a server that sees each update by itself, after `rounds` orders carried out."""
    return composed([noise / math.sqrt(silos)] * rounds, delta)


def composed(multipliers: Iterable[float], delta: float) -> float:
    """Epsilon of Gaussian mechanisms with these noise multipliers, one after another."""
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta = {delta}: expected a number between 0 and 1")
    counted = Counter(multipliers)
    if any(multiplier <= 0 for multiplier in counted):
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigurationError('epsilon needs dp-accounting: pip install "caveat[privacy]"') from error
    accountant = RdpAccountant()
    for multiplier, rounds in counted.items():
        accountant.compose(GaussianDpEvent(multiplier), rounds)
    return float(accountant.get_epsilon(delta))


DELTA = 1e-5


class SentMessage(Protocol):
    """What a ledger says of a message: whose it was, of which position of the schedule, phase and split, and how much
    it held."""

    @property
    def silo(self) -> SiloId: ...
    @property
    def t(self) -> int | None: ...
    @property
    def phase(self) -> str: ...
    @property
    def split(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def examples(self) -> int | None: ...


@frozen_settings
class Privacy:
    """Differential privacy of whole silos: clipping and noise for what training sends. Off unless `clip_norm` is
    set."""

    clip_norm: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """Largest L2 norm of a silo's update in a round; larger ones are scaled down."""
    noise_multiplier: Annotated[float, Field(ge=0, le=LARGE)] | None = None
    """Noise multiplier: standard deviation of the noise in a round's sum, divided by `clip_norm` (1 by default)."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The delta for which epsilon is reported (0.00001 by default)."""

    def __post_init__(self) -> None:
        for key in ("noise_multiplier", "delta"):
            if self.clip_norm is None and getattr(self, key) is not None:
                raise ConfigurationError(
                    f"privacy.{key} = {getattr(self, key)} is ignored without privacy.clip_norm", f"privacy.{key}"
                )

    def around(self, method: Method, silos: int) -> Method:
        """The method with clipping and noise around it, `silos` being asked in a round.

        Raises ConfigurationError for a method that they do not fit.
        """
        return method if self.clip_norm is None else Private(method, self.clip_norm, self.multiplier, silos)

    @property
    def multiplier(self) -> float:
        return 1.0 if self.noise_multiplier is None else self.noise_multiplier

    def check(self) -> None:
        """Raises ConfigurationError if epsilon could not be computed in the end."""
        if self.clip_norm is not None:
            composed([1.0], self.delta or DELTA)

    def outcome(self, messages: Iterable[SentMessage], silos: int, covers: tuple[str, ...]) -> dict[str, Any]:
        """The entry of a run's summary: for which silo which epsilon, by what the ledger's messages say was sent.

        "epsilon" is towards whoever sees sums only, the largest of all silos'. "epsilon_server" is towards a server
        that sees each update, also those that came too late to count: of a silo that worked in every round of training.
        null is infinite: some round had no noise. Both are of a silo that took part or not; "row" has those of one row
        of a silo having been another, which can move a clipped update by twice the clip. Not covered: what else left
        the silos.
        """
        trained, other = list[SentMessage](), set[str]()
        for message in messages:
            if message.split is None and message.phase in covers:
                trained.append(message)
            elif message.bytes or (message.examples or 0) > 1:  # else it says no more than that it was sent
                other.add(message.split or message.phase)
        replies = Counter(message.t for message in trained)
        rounds: dict[SiloId, list[int]] = {}
        for message in trained:
            rounds.setdefault(message.silo, []).append(replies[message.t])
        delta, noise = self.delta or DELTA, self.multiplier

        def epsilons(multiplier: float) -> dict[str, float | None]:
            return {
                "epsilon": _largest(epsilon(multiplier, each, silos, delta) for each in _distinct(rounds.values())),
                "epsilon_server": _largest([epsilon_against_server(multiplier, len(replies), silos, delta)]),
            }

        return {
            "clip_norm": self.clip_norm, "noise_multiplier": noise, "delta": delta, **epsilons(noise),
            "row": epsilons(noise / 2),
            "covers": list(covers), "not_covered": sorted(other),
        }  # fmt: skip


def _distinct(rounds: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in {tuple(sorted(each)) for each in rounds}]


def _largest(values: Iterable[float]) -> float | None:
    largest = max(values, default=0.0)
    return None if largest == float("inf") else largest
