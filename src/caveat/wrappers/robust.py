"""What a server does with the replies of silos some of which may lie: a configuration's `federation.robust`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, cast, get_args

from pydantic import Field

from ..core import ConfigurationError, Method, Replies, Round, RunError, SiloContext, State
from ..core.robust import Rule, combined, silos_needed
from ..core.settings import MAX_COUNT, frozen_settings
from .base import Wrapper, find
from .private import Private

Choice = Literal["bound", "median", "trimmed_mean", "geometric_median", "krum", "off"]


@frozen_settings
class Robust:
    """How a federation is protected from silos that lie."""

    rule: Choice = "bound"
    """bound: a mean of updates no longer than four times the usual; median, trimmed, geometric, krum: in place of the
    mean; off: the mean of whatever comes."""
    max_byzantine: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Assumed maximum number of malicious silos per round, for the robust aggregation rules (1 by default)."""

    def __post_init__(self) -> None:
        if self.max_byzantine is not None and self.rule not in get_args(Rule):
            raise ConfigurationError(
                f"federation.max_byzantine = {self.max_byzantine} is ignored by federation.robust = {self.rule!r}; it "
                f"belongs to {', '.join(get_args(Rule))}",
                "federation.max_byzantine",
            )

    @property
    def bounds(self) -> bool:
        """Whether updates are scaled down to a bound."""
        return self.rule == "bound"

    @property
    def watches(self) -> bool:
        """Whether rounds are looked at for who was far from all others."""
        return self.rule != "off"

    def around(self, method: Method, silos: int) -> Method:
        """The method with a rule in place of its means, `silos` being asked in a round; itself without such a rule.

        Raises ConfigurationError for a method whose server needs more than means, for too few silos, and where noise
        was added for privacy: what that is worth is known of sums alone.
        """
        if self.rule not in get_args(Rule) or not method.federated:
            return method
        rule, max_byzantine, where = (
            cast(Rule, self.rule),
            self.max_byzantine or 1,
            f"federation.robust = {self.rule!r}",
        )
        for t, step in enumerate(method.schedule()):
            if counts(step) and not step.linear:
                raise ConfigurationError(
                    f"{where} does not fit {method.name!r}: in round {t}, {step.name!r}, its server needs more of the "
                    "silos' updates than their mean; use 'bound' or 'off'",
                    "federation.robust",
                )
        if find(method, Private) is not None:
            raise ConfigurationError(
                f"{where} does not go together with privacy.clip_norm: what the noise protects is known of the sum "
                "over silos, not of other rules; use 'bound' or 'off'",
                "federation.robust",
            )
        if silos < (least := silos_needed(rule, max_byzantine)):
            raise ConfigurationError(
                f"{where} with federation.max_byzantine = {max_byzantine} needs at least {least} silos in a round, but "
                f"a round asks {silos}; use 'bound' or 'off'",
                "federation.robust",
            )
        return Combined(method, rule, max_byzantine)


def counts(step: Round) -> bool:
    """Whether a liar's reply in a round moves the model: in training, and where a round says from what replies are
    changed.
    """
    return step.trains or step.origin is not None


@dataclass(frozen=True)
class Combined(Wrapper):
    """The base, whose server is handed what a rule makes of the updates of a round of training, in place of means.

    All replies of such a round are kept until the last one has come. What is no training is added up as ever, but for
    what training goes by.
    """

    rule: Rule
    max_byzantine: int

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            yield replace(step, aggregate=partial(self.settle, own), linear=None) if counts(own) else step

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """The base's aggregation of what the rule makes of the replies. Raises RunError if they are too few."""
        if len(replies) < (least := silos_needed(self.rule, self.max_byzantine)):
            raise RunError(
                f"{step.name!r}: {len(replies)} silos have replied, but federation.robust = {self.rule!r} needs "
                f"{least} where {self.max_byzantine} may lie; what was saved before is kept"
            )
        means = combined(self.rule, [update.payload for update in replies.updates.values()], self.max_byzantine)
        forms = {silo: update.form() for silo, update in replies.updates.items()}
        return step.aggregate(server, Replies(forms, replies.population, replies.left_out, means), context)
