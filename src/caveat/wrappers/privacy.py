"""What a user may ask to be done for the privacy of silos: a configuration's `[privacy]` section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Protocol

from pydantic import Field

from ..core import ConfigurationError, Method, SiloId
from ..core.settings import LARGE, frozen_settings
from .accounting import composed, epsilon, epsilon_against_server
from .private import Private

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
    """Differential privacy of whole silos: clipping and noise for what training sends. Off unless `clip` is set."""

    clip: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """Largest L2 norm of a silo's update in a round; larger ones are scaled down."""
    noise: Annotated[float, Field(ge=0, le=LARGE)] | None = None
    """Noise multiplier: standard deviation of the noise in a round's sum, divided by `clip` (1 by default)."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The delta for which epsilon is reported (0.00001 by default)."""

    def __post_init__(self) -> None:
        for key in ("noise", "delta"):
            if self.clip is None and getattr(self, key) is not None:
                raise ConfigurationError(
                    f"privacy.{key} = {getattr(self, key)} is ignored without privacy.clip", f"privacy.{key}"
                )

    def around(self, method: Method, silos: int) -> Method:
        """The method with clipping and noise around it, `silos` being asked in a round.

        Raises ConfigurationError for a method that they do not fit.
        """
        return method if self.clip is None else Private(method, self.clip, self.multiplier, silos)

    @property
    def multiplier(self) -> float:
        return 1.0 if self.noise is None else self.noise

    def check(self) -> None:
        """Raises ConfigurationError if epsilon could not be computed in the end."""
        if self.clip is not None:
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
            "clip": self.clip, "noise": noise, "delta": delta, **epsilons(noise), "row": epsilons(noise / 2),
            "covers": list(covers), "not_covered": sorted(other),
        }  # fmt: skip


def _distinct(rounds: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in {tuple(sorted(each)) for each in rounds}]


def _largest(values: Iterable[float]) -> float | None:
    largest = max(values, default=0.0)
    return None if largest == float("inf") else largest
