"""The base of all wrappers: a wrapper forwards everything that it does not override to its base method.

This module also checks the sums that silos send against what they reported about their data.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core import Answers, Method, Payload, Round, SiloContext, State, Tensors
from ..core.prediction import with_subgroup

Kind = TypeVar("Kind", bound="Wrapper")


@dataclass(frozen=True)
class Wrapper(Method):
    """Forward everything in `Method` to the base, except `predict`, which calls hooks that wrappers may override."""

    base: Method

    @property
    def method(self) -> Method:
        """The innermost method, without wrappers."""
        return self.base.method if isinstance(self.base, Wrapper) else self.base

    def schedule(self) -> Iterable[Round]:
        """Return the base's rounds, with the base's path in their addresses."""
        for step in self.base.schedule():
            yield replace(step, path=f"base.{step.path}")


def _forwarded(name: str, is_method: bool) -> Any:
    """Return a method or property that forwards to the base."""

    def call(self: Wrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, name)(*args, **kwargs)

    return call if is_method else property(lambda self: getattr(self.base, name))


# A wrapper forwards every hook of `Method` that it does not define itself.
for _name, _member in vars(Method).items():
    if not (_name.startswith("_") or _name == "predict" or _name in vars(Wrapper)):
        setattr(Wrapper, _name, _forwarded(_name, callable(_member)))


def find(method: Method, kind: type[Kind]) -> Kind | None:
    """Return the wrapper of a kind around a method; None if there is none."""
    while isinstance(method, Wrapper):
        if isinstance(method, kind):
            return method
        method = method.base
    return None


def asked(method: Method, down: Payload, state: State, context: SiloContext, split: str) -> Answers:
    """Return the answers to the inputs of a split, with their subgroups."""
    own = context.asking(split)
    return with_subgroup(method.answer(down, state, own, getattr(context, split).x), own.subgroup)


SLACK = 1e-6
"""Allowed relative rounding error in sums that are not counts."""


def no_counts(name: str, counts: Tensor, most: float) -> str:
    """Return why numbers cannot be counts of at most `most` inputs, each counted once; "" if they can."""
    whole = bool(((counts >= 0) & (counts == counts.floor())).all())
    if whole and float(counts.sum()) <= most:
        return ""
    return f"{name} are not counts of at most {most:.0f} inputs"


def no_histograms(histograms: Tensors, most: float) -> str:
    """Return why tensors cannot be histograms of at most `most` inputs; "" if they can."""
    found = (no_counts(name, each, most) for name, each in histograms.items())
    return next((why for why in found if why), "")


def apart(name: str, by_row: Tensor) -> Tensors:
    """Split histograms by row into histograms of all inputs and of subgroups; in each part, an input counts once."""
    return {name: by_row[0], f"{name} of subgroups": by_row[1:]}


def not_within(name: str, numbers: Tensor, low: Tensor | float, high: Tensor | float) -> str:
    """Return why numbers are not between bounds, which have the same shape (...) or are scalars; "" if they are."""
    low, high = torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
    room = SLACK * (1 + torch.maximum(low.abs(), high.abs()))
    if bool(((numbers >= low - room) & (numbers <= high + room)).all()):
        return ""
    return f"{name} are impossible for this number of inputs"


def no_scatter(name: str, squares: Tensor, total: Tensor | None = None) -> str:
    """Return why `squares` (d, d) about means cannot be sums of products, which are symmetric without a negative
    variance; "" if they can. The tolerance is relative to the largest diagonal entry of `total`, from which the means
    were subtracted."""
    squares = squares.double()
    largest = float((squares if total is None else total).diagonal().abs().max()) if len(squares) else 0.0
    symmetric = bool(((squares - squares.T).abs() <= SLACK * (1 + largest)).all())
    least = float(torch.linalg.eigvalsh(squares)[0]) if len(squares) else 0.0
    if symmetric and least >= -SLACK * (1 + largest) * len(squares):
        return ""
    return f"{name} are not sums of products: a variance is negative"
