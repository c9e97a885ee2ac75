"""Custom metrics, which a silo computes on its test split: one number per metric leaves the silo."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import ConfigurationError, Prediction, Tensors
from ..core.errors import message_of, short_repr
from .sums import HIGHER_IS_BETTER, LOWER_IS_BETTER

Compute = Callable[[NDArray[Any], NDArray[Any]], float]
"""Maps labels (N,) int64 and probabilities (N, C) float64 to a number."""
Function = TypeVar("Function", bound=Callable[..., Any])
LONGEST = 60
"""Maximum number of characters of a metric's name."""
TAKEN = HIGHER_IS_BETTER | LOWER_IS_BETTER | {"entropy", "aleatoric", "epistemic", "unfamiliar", "novel", "unsure"}
"""Names of the built-in metrics."""


@dataclass(frozen=True)
class OwnMetric:
    """A custom metric."""

    name: str
    compute: Compute
    higher_is_better: bool = True


METRICS: dict[str, OwnMetric] = {}
"""The metrics that this process has registered, by name."""


@overload
def metric(function: Function) -> Function: ...
@overload
def metric(*, name: str | None = None, higher_is_better: bool = True) -> Callable[[Function], Function]: ...
def metric(
    function: Callable[..., Any] | None = None, *, name: str | None = None, higher_is_better: bool = True
) -> Callable[..., Any]:
    """Register a function as a metric for `evaluation.metrics`, under its own name or `name`; a decorator.

    The function takes labels (N,) int64 and probabilities (N, C) float64, NumPy arrays, of the N inputs of a silo's
    test split, and returns a number; NaN if it is undefined, for example with one class only. `higher_is_better`
    defines the worst silo. A metric registered under the same name before is replaced. Raises ConfigurationError for
    anything but a function.
    """

    def registered(function: Any) -> Any:
        own = own_metric(name or getattr(function, "__name__", ""), function, higher_is_better)
        METRICS[own.name] = own
        return function

    return registered if function is None else registered(function)


def own_metric(name: object, function: object, higher_is_better: bool = True) -> OwnMetric:
    """Return a metric. Raises ConfigurationError for an invalid name, and for anything but a function."""
    if not is_name(name) or "/" in name:
        raise ConfigurationError(
            f"metrics: name {short_repr(name)}, expected text of 1 to {LONGEST} printable characters without /",
            "metrics",
        )
    if name in TAKEN:
        raise ConfigurationError(f"metrics: {name!r} is a built-in metric; choose another name", "metrics")
    if not callable(function):
        kind = type(function).__name__
        raise ConfigurationError(
            f"metrics[{name!r}] has type {kind}, expected a function of labels and probabilities", "metrics"
        )
    return OwnMetric(name, function, higher_is_better)


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a name is valid for a metric."""
    return isinstance(name, str) and bool(name.strip()) and name.isprintable() and len(name) <= LONGEST


def given_metrics(metrics: object) -> tuple[OwnMetric, ...]:
    """Return the metrics of a mapping from names to functions; registered functions keep their `higher_is_better`."""
    if not isinstance(metrics, Mapping):
        raise ConfigurationError(
            f"metrics = {short_repr(metrics)}: expected a mapping from names to functions", "metrics"
        )
    lower = [own.compute for own in METRICS.values() if not own.higher_is_better]
    return tuple(own_metric(name, each, all(each is not other for other in lower)) for name, each in metrics.items())


def known_metrics(names: Sequence[str], given: Iterable[OwnMetric] = ()) -> tuple[OwnMetric, ...]:
    """Return the metrics with these names that are given or registered, without the others."""
    known = METRICS | {own.name: own for own in given}
    return tuple(known[name] for name in names if name in known)


def check_known(names: Sequence[str], given: Iterable[OwnMetric] = ()) -> None:
    """Raise ConfigurationError for an unknown name of a metric."""
    known = {own.name for own in known_metrics(names, given)}
    if lacking := [name for name in names if name not in known]:
        raise ConfigurationError(
            f"evaluation.metrics: there is no metric {lacking[0]!r}; put @caveat.metric above its function, and "
            "name the file of this function: --plugin my.py (in Python, import it, or give metrics={name: function})",
            "evaluation.metrics",
        )


def own_values(metrics: Iterable[OwnMetric], prediction: Prediction, y: Tensor) -> Tensors:
    """Return the values of metrics of N predictions for labels `y` (N,), by name, () float64, without NaN. Raises
    ConfigurationError, naming the metric, if one fails or returns neither a finite number nor NaN."""
    found = {}
    for own in metrics:
        labels, probs = y.detach().cpu().clone().numpy(), prediction.probs.detach().cpu().double().clone().numpy()
        value = _number(own, labels, probs)
        if not math.isnan(value):
            found[own.name] = torch.tensor(value, dtype=torch.float64)
    return found


def _number(own: OwnMetric, labels: NDArray[Any], probs: NDArray[Any]) -> float:
    try:
        value: Any = own.compute(labels, probs)
    except Exception as error:
        raise ConfigurationError(f"metric {own.name!r} fails: {message_of(error)}", "evaluation.metrics") from error
    number = number_of(value, f"metric {own.name!r}", "evaluation.metrics")
    if math.isinf(number):
        raise ConfigurationError(
            f"metric {own.name!r} returned {number}, expected a finite number, or NaN if it is undefined",
            "evaluation.metrics",
        )
    return number


def number_of(value: Any, who: str, key: str, where: str = "") -> float:
    """Return the value of a metric as a number. Raises ConfigurationError, naming the metric, for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigurationError(
            f"{who} returned a value of type {type(value).__name__}{where}, expected a number", key
        ) from None
