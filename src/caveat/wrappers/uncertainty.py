"""What a user may ask to be done about uncertainty: a configuration's `[uncertainty]` section."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ..core import ConfigurationError, Method
from ..core.settings import frozen_settings
from ..uncertainty.familiarity import SCORE
from .base import find
from .familiar import Familiar
from .guaranteed import Guaranteed
from .private import Private
from .switched import Switched
from .tempered import Tempered

OWNERS = {
    "score": ("switch", "guaranteed"),
    "outliers": ("switch",), "abstain": ("switch",), "ambiguous": ("switch",),
    "risk": ("guaranteed",), "confidence": ("guaranteed",),
}  # fmt: skip
"""The policies that read a key."""


TEMPERED = ("total", "aleatoric", "epistemic")
"""The scores that a temperature changes."""


@frozen_settings
class Uncertainty:
    """How predictions get their uncertainty, and what is done about it."""

    mc_samples: Annotated[int, Field(ge=1, le=10_000)] = 20
    """MC-dropout passes per prediction, for methods that sample."""
    temperature: bool = False
    """Scale probabilities by a temperature per model, fitted on all silos' calibration splits after training."""
    familiarity: bool = True
    """Say of every input how familiar it is, as a p-value: sums of what models say of training inputs are sent once."""
    alarm: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """familiarity: largest share of inputs like its own that a silo calls unfamiliar; switch and guaranteed abstain
    from what is. 0 never does."""
    policy: Literal["own", "switch", "guaranteed"] | None = None
    """own: every input is answered, by the silo's own model if it has one; switch: local, global or abstain by
    thresholds; guaranteed: the same with a bound on errors among answered inputs. By default the method's own."""
    score: str | None = None
    """switch and guaranteed: what they compare, total, aleatoric, epistemic or a score that the method adds."""
    outliers: Annotated[float, Field(ge=0, lt=1)] | None = None
    """switch: share of its own data that a silo hands to the federation's model (0.1 by default)."""
    abstain: Annotated[float, Field(ge=0, lt=1)] | None = None
    """switch: share of calibration data for which the model that is asked last abstains (0.05 by default)."""
    ambiguous: Annotated[float, Field(gt=0)] | None = None
    """switch: aleatoric uncertainty in nats above which no model is trusted (none by default)."""
    risk: Annotated[float, Field(ge=1e-6, lt=1)] | None = None
    """guaranteed: largest share of errors among answered inputs (0.05 by default)."""
    confidence: Annotated[float, Field(gt=0, le=0.999999)] | None = None
    """guaranteed: probability with which it holds (0.9 by default)."""

    def __post_init__(self) -> None:
        for key, owners in OWNERS.items():
            value = getattr(self, key)
            if value is not None and self.policy is not None and self.policy not in owners:
                raise ConfigurationError(
                    f"uncertainty.{key} = {value!r} is ignored by policy {self.policy!r}; it belongs to "
                    + " and ".join(map(repr, owners)),
                    f"uncertainty.{key}",
                )

    def fitting(self, method: Method) -> Uncertainty:
        """These settings for a method beside the configured one: without the keys that mean nothing to it."""
        policy = self.policy or method.policy
        strange = {key: None for key, owners in OWNERS.items() if policy not in owners}
        if self.score not in (*method.scores, SCORE):
            strange["score"] = None
        return replace(self, **strange)  # type: ignore[arg-type]

    def around(self, method: Method) -> Method:
        """The method with calibration and decisions around it. Raises ConfigurationError for what does not fit."""
        policy = self.policy or method.policy
        given: dict[str, Any] = {key: getattr(self, key) for key in OWNERS if getattr(self, key) is not None}
        for key, value in given.items():
            if policy not in OWNERS[key]:
                raise ConfigurationError(
                    f"uncertainty.{key} = {value!r} is ignored: the policy of {method.name!r} is {policy!r}, unless "
                    f"uncertainty.policy names another",
                    f"uncertainty.{key}",
                )
        inner = Tempered(method) if self.temperature else method
        if self.familiarity:
            inner = Familiar(inner, self.alarm, shared=method.federated and find(method, Private) is None)
        if policy == "own":
            return inner
        score = self.score or method.scores[-1]
        if score not in inner.scores:
            known = ", ".join(inner.scores)
            raise ConfigurationError(
                f"uncertainty.score = {score!r}: {method.name!r} has the scores {known}", "uncertainty.score"
            )
        if policy == "guaranteed" and self.temperature and score in TEMPERED:
            raise ConfigurationError(
                f"uncertainty.temperature = true with policy 'guaranteed' and score {score!r}: the temperature would "
                "be fitted on the very labels that the guarantee is tested on; leave one of them out",
                "uncertainty.temperature",
            )
        given["score"] = score
        return Switched(inner, **given) if policy == "switch" else Guaranteed(inner, **given)
