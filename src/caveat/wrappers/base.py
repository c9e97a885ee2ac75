"""A wrapper that adds nothing: what it does not override is the base's.

Wrappers whose silos send sums check them here, by what a silo said about its data.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..core import Answers, Decision, Method, Payload, Prediction, Round, SiloContext, SiloTask, State, Tensors

Kind = TypeVar("Kind", bound="Wrapper")


@dataclass(frozen=True)
class Wrapper(Method):
    """All of `Method` is the base's, but `predict`: it asks what a wrapper may override, `answer` and `decide`."""

    base: Method

    @property
    def method(self) -> Method:
        """The method within, whatever else is around it."""
        return self.base.method if isinstance(self.base, Wrapper) else self.base

    # Constants of a class there, which mypy would have be so here.
    @property
    def models(self) -> tuple[Decision, ...]:  # type: ignore[override]
        return self.base.models

    @property
    def policy(self) -> str:  # type: ignore[override]
        return self.base.policy

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.base.personal

    @property
    def federated(self) -> bool:  # type: ignore[override]
        return self.base.federated

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.base.scores

    @property
    def evaluations(self) -> Mapping[str, SiloTask]:
        return self.base.evaluations

    def build(self, model: nn.Module) -> nn.Module:
        return self.base.build(model)

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context)

    def init_silo(self, context: SiloContext) -> State:
        return self.base.init_silo(context)

    def schedule(self) -> Iterable[Round]:
        """The base's rounds, which are carried out by the base: their path says so."""
        for step in self.base.schedule():
            yield replace(step, path=f"base.{step.path}")

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server)

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return self.base.answer(down, state, context, x)

    @property
    def softmax(self) -> bool:
        return self.base.softmax

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        return self.base.loaded(down, state, context)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        return self.base.decide(down, state, answers)

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.describe(down, state, context, x)

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.features(down, state, context, x)

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        return self.base.summarize(sums)

    def fitted(self, module: nn.Module) -> frozenset[str] | None:
        return self.base.fitted(module)

    def remark(self, module: nn.Module) -> str:
        return self.base.remark(module)

    @property
    def follows_rounds(self) -> str:
        return self.base.follows_rounds

    def mismatch(self, module: nn.Module, own: nn.Module) -> str:
        return self.base.mismatch(module, own)

    def milestone(self, server: State) -> dict[str, float]:
        return self.base.milestone(server)

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(server)

    @property
    def name(self) -> str:
        return self.base.name


def find(method: Method, kind: type[Kind]) -> Kind | None:
    """The wrapper of that kind around a method, if there is one."""
    while isinstance(method, Wrapper):
        if isinstance(method, kind):
            return method
        method = method.base
    return None


SLACK = 1e-6
"""The relative error that is allowed in sums of numbers that are no counts."""


def no_counts(name: str, counts: Tensor, most: float) -> str:
    """Why numbers are no counts of inputs of which each is counted once, and of which there are so many at most."""
    whole = bool(((counts >= 0) & (counts == counts.floor())).all())
    if whole and float(counts.sum()) <= most:
        return ""
    return f"{name} are no counts of {most:.0f} inputs at most"


def no_histograms(histograms: Tensors, most: float) -> str:
    """Why tensors are no histograms of so many inputs at most."""
    found = (no_counts(name, each, most) for name, each in histograms.items())
    return next((why for why in found if why), "")


def not_within(name: str, numbers: Tensor, low: Tensor | float, high: Tensor | float) -> str:
    """Why numbers are not between these bounds, (...) of the same shape or one for all."""
    low, high = torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
    room = SLACK * (1 + torch.maximum(low.abs(), high.abs()))
    if bool(((numbers >= low - room) & (numbers <= high + room)).all()):
        return ""
    return f"{name} are beyond what so many inputs can come to"


def no_scatter(name: str, squares: Tensor, total: Tensor | None = None) -> str:
    """Why (d, d) `squares`, less what is their part by means, are no sums of squares: they have a negative direction.

    How negative is held against the largest of the `total`, since what was taken away was rounded as that was.
    """
    squares = squares.double()
    largest = float((squares if total is None else total).diagonal().abs().max()) if len(squares) else 0.0
    symmetric = bool(((squares - squares.T).abs() <= SLACK * (1 + largest)).all())
    least = float(torch.linalg.eigvalsh(squares)[0]) if len(squares) else 0.0
    if symmetric and least >= -SLACK * (1 + largest) * len(squares):
        return ""
    return f"{name} are no sums of products: they have a negative variance"
