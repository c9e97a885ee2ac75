"""A wrapper is its base in everything that it does not override: whatever `Method` has, or will have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from federations import METHODS

import caveat
from caveat.core import ConfigurationError, Decision, Method, Round
from caveat.core.quantity import Quantity
from caveat.methods import FedAvg, FedBN, FedPN, TrFedDis
from caveat.training.fit import Training
from caveat.wrappers.aggregation import Combined
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.base import Wrapper
from caveat.wrappers.choice_policies import Best, Blended, Surer, Switched
from caveat.wrappers.ensembles import Ensemble, SeveralModels, Snapshots
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.evaluation import Evaluated
from caveat.wrappers.joining import Joining
from caveat.wrappers.laplace import Laplace
from caveat.wrappers.pooled_alarms import PooledAlarms
from caveat.wrappers.prediction_sets import ByClass, Conformal, LabelShifted
from caveat.wrappers.privacy import Private
from caveat.wrappers.quantities import Intervals, Valued
from caveat.wrappers.server_optimizers import Stepping
from caveat.wrappers.temperature_scaling import ClassBiased, TemperatureScaled
from caveat.wrappers.training_options import Balanced, Carried

ATTRIBUTES = [name for name in dir(Method) if not name.startswith("_")]
ON_PURPOSE = {"predict"}
"""What asks for others that a wrapper may override, and is final."""


def private(base: Method) -> Wrapper:
    return Private(base, clip_norm=1.0, noise_multiplier=0.1, silos=3)


def stepping(base: Method) -> Wrapper:
    return Stepping(base, "adam", lr=0.01, beta1=0.9, beta2=0.99, tau=1e-3)


def carried(base: Method) -> Wrapper:
    return Carried(base, Training(optimizer_state="keep"), shared=False)


def combined(base: Method) -> Wrapper:
    return Combined(base, "median", max_byzantine=1)


def joining(base: Method) -> Wrapper:
    return Joining(base, rounds=0)


def snapshots(base: Method) -> Wrapper:
    return Snapshots(base, ensemble_size=1)


DAYS = Quantity((0.0, 1.0, 3.0), (0.5, 2.0), (0.5, 0.5), 10)
MAKERS: dict[type[Wrapper], Callable[[Method], Wrapper]] = {
    Wrapper: Wrapper,
    Evaluated: Evaluated,
    TemperatureScaled: TemperatureScaled,
    ClassBiased: ClassBiased,
    Switched: Switched,
    Best: Best,
    Blended: Blended,
    Surer: Surer,
    Guaranteed: Guaranteed,
    Conformal: Conformal,
    LabelShifted: LabelShifted,
    ByClass: ByClass,
    Valued: lambda base: Valued(base, DAYS),
    Intervals: lambda base: Intervals(base, target=DAYS),
    Familiar: Familiar,
    PooledAlarms: PooledAlarms,
    Private: private,
    Combined: combined,
    Joining: joining,
    Laplace: Laplace,
    SeveralModels: SeveralModels,
    Ensemble: Ensemble,
    Snapshots: snapshots,
    Stepping: stepping,
    Carried: carried,
    Balanced: Balanced,
}


def own(kind: type[Wrapper]) -> set[str]:
    """What a kind of wrapper overrides."""
    return {name for each in kind.mro()[: kind.mro().index(Wrapper)] for name in vars(each)}


CASES = [
    pytest.param(kind, name, id=f"{kind.__name__}-{name}")
    for kind in MAKERS
    for name in ATTRIBUTES
    if name not in own(kind) | ON_PURPOSE
]


def echo(name: str) -> Any:
    """A method of a class that gives back its name and arguments."""
    return lambda self, *given: (name, given)


def probe() -> Method:
    """A method of which every public attribute is unlike that of any other."""
    plain = FedAvg(rounds=2)
    said = {name: echo(name) if callable(getattr(Method, name)) else ("value of", name) for name in ATTRIBUTES}
    said["schedule"] = lambda self: iter([Round(plain.broadcast, plain.train, linear="silos", name="mine")])
    return type("Probe", (Method,), said)()  # type: ignore[no-any-return]


def told(method: Method, name: str) -> Any:
    """What an attribute is, or gives for arguments that are marks; of a schedule, rounds without their paths."""
    value = getattr(method, name)
    if name == "schedule":
        return [replace(step, path="") for step in value()]
    return value(*[*inspect.signature(getattr(Method, name)).parameters][1:]) if callable(value) else value


def wrappers(kind: type[Wrapper] = Wrapper) -> Iterable[type[Wrapper]]:
    yield kind
    for each in kind.__subclasses__():
        yield from wrappers(each)


def test_every_wrapper_is_tested_here() -> None:
    assert {kind for kind in wrappers() if kind.__module__.startswith("caveat.")} == set(MAKERS)


def test_what_no_wrapper_hands_on_is_final() -> None:
    assert {name for name in ATTRIBUTES if getattr(getattr(Method, name), "__final__", False)} == ON_PURPOSE


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_wrapper_hands_on_what_it_does_not_override(kind: type[Wrapper], name: str) -> None:
    base = probe()
    assert told(MAKERS[kind](base), name) == told(base, name)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_what_a_method_declares_holds_however_it_is_wrapped(method: Method) -> None:
    values = [name for name in ATTRIBUTES if not callable(getattr(Method, name)) and name != "evaluations"]
    assert {"models", "policy", "personal", "scores", "name"} <= set(values)
    for kind, make in MAKERS.items():
        try:
            wrapped = Evaluated(make(method))
        except ConfigurationError:
            continue  # clipping and noise do not fit it
        handed = [name for name in values if name not in own(kind)]
        assert [getattr(wrapped, name) for name in handed] == [getattr(method, name) for name in handed]


def test_the_models_that_a_wrapped_method_asks_are_its_own() -> None:
    assert Evaluated(FedBN()).models == (Decision.LOCAL,)
    assert Evaluated(TemperatureScaled(FedPN())).policy == "switch"


def test_a_score_of_the_method_can_be_limited_under_clipping_and_noise() -> None:
    method = caveat.Uncertainty(policy="switch", score="conflict").around(private(TrFedDis()))
    assert isinstance(method, Switched)
    assert method.score == "conflict"
    with pytest.raises(
        ConfigurationError, match="not a score of 'trfeddis', expected one of unfamiliar, epistemic, aleatoric, con"
    ):
        caveat.Uncertainty(policy="switch", score="vacuum").around(private(TrFedDis()))
