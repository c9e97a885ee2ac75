"""The `[uncertainty]` section of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ..core import ConfigurationError, Method
from ..core.quantity import Quantity, Times, check_classes_only
from ..core.settings import frozen_settings
from ..uncertainty import novelty
from ..uncertainty.typicality import SCORE
from .alarms import Familiar
from .base import find
from .choice_policies import Best, Blended, Surer, Switched
from .ensembles import Ensemble, Snapshots, has_rounds_after_training
from .error_guarantee_policy import Guaranteed, GuaranteeScope
from .laplace import Laplace
from .pooled_alarms import PooledAlarms
from .prediction_sets import ByClass, Conformal, LabelShifted
from .privacy import Private
from .quantities import Intervals, Valued
from .temperature_scaling import ClassBiased, TemperatureScaled

OWNERS = {
    "handover_rate": ("switch",), "abstain_rate": ("switch",), "max_aleatoric": ("switch",),
    "risk": ("guaranteed",), "confidence_level": ("guaranteed",), "guarantee_scope": ("guaranteed",),
    "familywise": ("guaranteed",), "tolerance": ("guaranteed",),
}  # fmt: skip
"""The policies that read a key."""
CHOOSING = ("best", "blend", "surer")
"""The policies that need two models to choose from."""
COMPARING = ("switch", "guaranteed", "surer")
"""The policies that compare a score."""

CLASSES_ONLY = ("class_bias", "set_coverage", "label_shift", "sets_per_class")
"""The keys about classes, which do not fit a quantity."""

ENOUGH = 100
"""Number of silos from which rounds after training ask only as many silos as a training round."""
INTERVAL = 0.9
"""Default coverage of intervals."""
MEMBERS = 5
"""Default number of models of an ensemble."""


@frozen_settings
class Uncertainty:
    """Uncertainty of predictions, and the decisions based on it."""

    mc_samples: Annotated[int, Field(ge=1, le=10_000)] = 20
    """MC-dropout passes per prediction, for methods that sample; draws of logits if the source is laplace."""
    source: Literal["own", "dropout", "laplace", "ensemble", "snapshots"] | None = None
    """Uncertainty estimator. dropout: MC dropout; laplace: a posterior of the last layer, which becomes narrower with
    more data; ensemble: several models, trained from different weights, at a multiple of the cost; snapshots: the
    models after the last rounds of one training. The default is the method's own estimator: evidence or drawn models if
    it has any, otherwise dropout."""
    ensemble_size: Annotated[int, Field(ge=2, le=100)] | None = None
    """ensemble and snapshots: number of models (5 by default)."""
    temperature_scaling: bool = True
    """Scale probabilities by a temperature per model and silo, fitted on validation splits after training; a silo's
    temperature is close to the global one if silos are similar. With privacy.clip_norm, silos send nothing for it."""
    class_bias: bool | None = None
    """temperature_scaling: also give each silo a bias per class, fitted to its validation split and shrunk towards 0
    the less silos differ (false by default). It changes predicted labels, in favor of the silo's class frequencies."""
    familiarity: bool = True
    """Give every input p-values for its familiarity and for the certainty of its answer; silos send sums over features
    of training inputs once."""
    false_alarm_rate: Annotated[float, Field(ge=0, le=0.5)] = 0.05
    """familiarity: maximum expected fraction of inputs like its own for which a silo raises an alarm (unfamiliar, novel
    or unsure); switch and guaranteed abstain from inputs with an alarm. 0 raises no alarms."""
    policy: Literal["always", "best", "blend", "surer", "switch", "guaranteed"] | None = None
    """always: answer every input, with the local model if there is one; best: with the model that is better on the
    silo's validation split; blend: with a weighted mean of both models; surer: with the less uncertain model; switch:
    local, global or abstain, by thresholds; guaranteed: as switch, with a bound on errors among answered inputs. The
    default is the method's own policy."""
    score: str | None = None
    """The score that the alarm unsure and the policies switch, guaranteed and surer compare: total (default for most
    methods), aleatoric, epistemic or one that the method adds."""
    handover_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """switch: fraction of a silo's own inputs that are passed on to the global model (0.1 by default)."""
    abstain_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """switch: fraction of calibration data for which the model asked last abstains (0.05 by default)."""
    max_aleatoric: Annotated[float, Field(gt=0)] | None = None
    """switch: aleatoric uncertainty in nats above which no model is trusted (none by default)."""
    risk: Annotated[float, Field(ge=1e-6, lt=1)] | None = None
    """guaranteed: maximum fraction of errors among answered inputs (0.05 by default)."""
    confidence_level: Annotated[float, Field(gt=0, le=0.999999)] | None = None
    """guaranteed: confidence level, the probability that the bound on `risk` holds (0.9 by default)."""
    guarantee_scope: GuaranteeScope | None = None
    """guaranteed: whose inputs the guarantee covers: federation, domain or silo (federation by default). A silo or
    domain with too few calibration inputs has the guarantee of the next larger group, and the run reports that."""
    familywise: bool | None = None
    """guaranteed: whether all guarantees of silos or domains hold simultaneously at that confidence level, rather than
    individually (false by default)."""
    tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """guaranteed, for a quantity: a prediction is wrong if its median is off by more than this."""
    interval: Annotated[float, Field(ge=0.01, le=0.999)] | None = None
    """For a quantity: fraction of inputs whose prediction interval contains the target (0.9 by default)."""
    set_coverage: Annotated[float, Field(ge=0.01, le=0.999)] | None = None
    """Fraction of inputs whose prediction set contains the true class (no prediction sets by default)."""
    label_shift: bool | None = None
    """set_coverage: a silo with too few calibration inputs for its own sets weights those of all silos by the class
    frequencies of its training data (false by default). Silos send a histogram per class."""

    sets_per_class: bool | None = None
    """set_coverage: the coverage holds for the inputs of each class (false by default: for all inputs together). A
    class with too few calibration inputs is pooled with the next larger one, and the coverage holds for both together.
    Silos with too few for their own sets send a histogram per class."""
    by_subgroup: bool = True
    """data.subgroups: each subgroup has its own guarantee, prediction sets and p-values; a subgroup with too few
    calibration inputs is pooled with the next larger one. With false, results are only reported by subgroup."""

    def __post_init__(self) -> None:
        if self.ensemble_size is not None and self.source not in ("ensemble", "snapshots"):
            raise ConfigurationError(
                f"uncertainty.ensemble_size = {self.ensemble_size} has no effect unless uncertainty.source is "
                "'ensemble' or 'snapshots'",
                "uncertainty.ensemble_size",
            )
        for key in ("label_shift", "sets_per_class"):
            if getattr(self, key) and self.set_coverage is None:
                raise ConfigurationError(
                    f"uncertainty.{key} = true has no effect unless uncertainty.set_coverage is set",
                    f"uncertainty.{key}",
                )
        if self.sets_per_class and self.label_shift:
            raise ConfigurationError(
                "uncertainty.sets_per_class = true computes a quantile per class, without the weights of "
                "uncertainty.label_shift = true: remove one of the keys",
                "uncertainty.label_shift",
            )
        if self.class_bias and not self.temperature_scaling:
            raise ConfigurationError(
                "uncertainty.class_bias = true has no effect with uncertainty.temperature_scaling = false",
                "uncertainty.class_bias",
            )
        for key, owners in OWNERS.items():
            value = getattr(self, key)
            if value is not None and self.policy is not None and self.policy not in owners:
                raise ConfigurationError(
                    f"uncertainty.{key} = {value!r} is not used by policy {self.policy!r}, only by policy "
                    + " and ".join(map(repr, owners)),
                    f"uncertainty.{key}",
                )

    def samples_dropout(self, method: Method) -> bool:
        """Return whether the method's uncertainty comes from dropout only."""
        return method.softmax and self.source in (None, "own", "dropout") and self.mc_samples > 1

    def fitting(self, method: Method) -> Uncertainty:
        """Return these settings for a baseline, without the keys that have no effect on it."""
        policy = self.policy or method.policy
        if policy in CHOOSING and len(method.models) < 2:
            return replace(self, policy=None).fitting(method)
        strange: dict[str, Any] = {key: None for key, owners in OWNERS.items() if policy not in owners}
        if self.source in ("dropout", "laplace") and not method.softmax:
            strange["source"] = None
        if self.source == "snapshots" and has_rounds_after_training(method):
            strange |= {"source": None, "ensemble_size": None}
        if not method.federated:
            strange |= {"label_shift": None, "class_bias": None}
        if policy not in COMPARING and not self.familiarity:
            strange["score"] = None
        fitting = replace(self, **strange)
        known = fitting.score in (*fitting.sourced(method).scores, SCORE)
        return fitting if known else replace(fitting, score=None)

    def sourced(self, method: Method, seed: int = 0, everyone: bool = True) -> Method:
        """Return the method with its uncertainty estimator. Raises ConfigurationError if it does not fit."""
        if self.source == "laplace":
            return Laplace(method, self.mc_samples, everyone)
        members = MEMBERS if self.ensemble_size is None else self.ensemble_size
        if self.source == "ensemble":
            return Ensemble(method, members, seed)
        if self.source == "snapshots":
            return Snapshots(method, members)
        if self.source == "dropout" and not method.softmax:
            raise ConfigurationError(
                f"uncertainty.source = 'dropout' does not fit {method.name!r}, whose predictions do not use dropout; "
                "remove the key to use the method's own estimator",
                "uncertainty.source",
            )
        return method

    def _check_target(self, policy: str, target: Quantity | None) -> None:
        """Raise ConfigurationError for keys that do not fit the target: a quantity, or classes."""
        for key in CLASSES_ONLY if target is not None else ():
            if getattr(self, key) is not None:
                check_classes_only(target, f"uncertainty.{key}")
        for key in ("interval", "tolerance") if target is None else ():
            if (value := getattr(self, key)) is not None:
                raise ConfigurationError(
                    f"uncertainty.{key} = {value:g} applies to quantities (data.predict), but the target has classes",
                    f"uncertainty.{key}",
                )
        if isinstance(target, Times) and (policy == "guaranteed" or self.tolerance is not None):
            key = "policy = 'guaranteed'" if policy == "guaranteed" else f"tolerance = {self.tolerance:g}"
            raise ConfigurationError(
                f"uncertainty.{key} needs errors of medians, which are unknown for censored times; predictions of "
                "times have lower bounds instead (uncertainty.interval)",
                f"uncertainty.{key.partition(' ')[0]}",
            )
        if target is not None and policy == "guaranteed" and self.tolerance is None:
            raise ConfigurationError(
                "uncertainty.tolerance is missing: policy 'guaranteed' needs the largest error with which a quantity "
                "still counts as correct",
                "uncertainty.tolerance",
            )

    def around(
        self,
        method: Method,
        silos: int = 1,
        *,
        seed: int = 0,
        subgroups: tuple[str, ...] = (),
        target: Quantity | None = None,
    ) -> Method:
        """Return the method with uncertainty estimator, calibration and decisions. `silos` is the number of silos that
        take part, `seed` is the run's, and `subgroups` and `target` (a quantity) describe the data. Raises
        ConfigurationError for incompatible settings."""
        policy = self.policy or method.policy
        self._check_target(policy, target)
        given: dict[str, Any] = {key: getattr(self, key) for key in OWNERS if getattr(self, key) is not None}
        for key, value in given.items():
            if policy not in OWNERS[key]:
                raise ConfigurationError(
                    f"uncertainty.{key} = {value!r} is not used by policy {policy!r}, the default of {method.name!r}; "
                    f"remove the key, or set uncertainty.policy = {' or '.join(map(repr, OWNERS[key]))}",
                    f"uncertainty.{key}",
                )
        subgroups = subgroups if self.by_subgroup else ()
        if self.familywise and (self.guarantee_scope or "federation") == "federation" and not subgroups:
            raise ConfigurationError(
                "uncertainty.familywise = true has no effect with a single guarantee; also set "
                "uncertainty.guarantee_scope = 'silo' or 'domain', or data.subgroups",
                "uncertainty.familywise",
            )
        for key in ("label_shift", "sets_per_class"):
            if getattr(self, key) and subgroups:
                raise ConfigurationError(
                    f"uncertainty.{key} = true compares calibration inputs by class and cannot be combined with sets "
                    "by subgroup: remove data.subgroups, or set uncertainty.by_subgroup = false",
                    f"uncertainty.{key}",
                )
        sends = method.federated and find(method, Private) is None
        if self.label_shift and not sends:
            raise ConfigurationError(
                "uncertainty.label_shift = true needs counts of calibration labels by class from every silo, which are "
                f"not sent with {'method ' + repr(method.name) if not method.federated else '[privacy]'}; remove the "
                "key",
                "uncertainty.label_shift",
            )
        if self.class_bias and not sends:
            raise ConfigurationError(
                "uncertainty.class_bias = true needs sums over validation labels from every silo, which are not sent "
                f"with {'method ' + repr(method.name) if not method.federated else '[privacy]'}; remove the key",
                "uncertainty.class_bias",
            )
        everyone = silos < ENOUGH
        method = self.sourced(method, seed, everyone)
        method = method if target is None else Valued(method, target)
        scaled = ClassBiased if self.class_bias else TemperatureScaled
        censored = isinstance(target, Times)
        inner = scaled(method, sends, everyone, censored) if self.temperature_scaling else method
        if self.familiarity:
            own = method.scores[-1] if self.score in (None, SCORE) else str(self.score)
            alarms = PooledAlarms if sends else Familiar
            inner = alarms(inner, self.false_alarm_rate, sends, everyone, own, len(subgroups))
        elif self.score is not None and policy not in COMPARING:
            raise ConfigurationError(
                f"uncertainty.score = {self.score!r} is not used by policy {policy!r} without uncertainty.familiarity",
                "uncertainty.score",
            )
        score = self.score or method.scores[-1]
        compared = [each for each in inner.scores if each != novelty.SCORE]  # a silo without rows lacks this score
        if score not in compared:
            known = ", ".join(compared)
            raise ConfigurationError(
                f"uncertainty.score = {score!r} is not a score of {method.name!r}, expected one of {known}",
                "uncertainty.score",
            )
        if policy == "guaranteed":
            given["subgroups"] = subgroups
        decided = inner if policy == "always" else self._deciding(inner, policy, score, given, sends, everyone)
        if target is not None:
            return Intervals(decided, INTERVAL if self.interval is None else self.interval, subgroups, target=target)
        if self.set_coverage is None:
            return decided
        kind = LabelShifted if self.label_shift else ByClass if self.sets_per_class else Conformal
        return kind(decided, self.set_coverage, subgroups)

    def _deciding(
        self, method: Method, policy: str, score: str, given: dict[str, Any], sends: bool, everyone: bool
    ) -> Method:
        """Return the method with a policy around it."""
        if policy in CHOOSING and len(method.models) < 2:
            raise ConfigurationError(
                f"uncertainty.policy = {policy!r} chooses between a local and a global model, but {method.name!r} has "
                "only one model",
                "uncertainty.policy",
            )
        if policy == "best":
            return Best(method, everyone)
        if policy == "blend":
            return Blended(method, everyone, sends)
        if policy == "surer":
            return Surer(method, self.score or "total")
        return (Switched if policy == "switch" else Guaranteed)(method, score=score, **given)
