"""A wrapper that adds nothing: what it does not override is the base's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn

from ..core import Answers, Decision, Method, Payload, Prediction, Round, Site, State, Tensors, Work

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
    def evaluations(self) -> Mapping[str, Work]:
        return self.base.evaluations

    def build(self, model: nn.Module) -> nn.Module:
        return self.base.build(model)

    def init_server(self, site: Site) -> State:
        return self.base.init_server(site)

    def init_silo(self, site: Site) -> State:
        return self.base.init_silo(site)

    def schedule(self) -> Iterable[Round]:
        """The base's rounds, which are carried out by the base: their path says so."""
        for step in self.base.schedule():
            yield replace(step, path=f"base.{step.path}")

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server)

    def answer(self, down: Payload, state: State, site: Site, x: Tensor) -> Answers:
        return self.base.answer(down, state, site, x)

    @property
    def softmax(self) -> bool:
        return self.base.softmax

    def loaded(self, down: Payload, state: State, site: Site) -> Iterator[tuple[Decision, nn.Module]]:
        return self.base.loaded(down, state, site)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        return self.base.decide(down, state, answers)

    def describe(self, down: Payload, state: State, site: Site, x: Tensor) -> Tensors:
        return self.base.describe(down, state, site, x)

    def features(self, down: Payload, state: State, site: Site, x: Tensor) -> Tensors:
        return self.base.features(down, state, site, x)

    def summarise(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        return self.base.summarise(sums)

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
