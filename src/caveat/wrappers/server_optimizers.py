"""Server optimizers: the server's model steps along the mean change of the silos' models.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi), which has no bias
correction; Hsu, Qi & Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, arXiv 1909.06335, 2019, for the server's momentum (FedAvgM).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..core import ConfigurationError, Method, Replies, Round, SiloContext, State, Tensors
from ..core.settings import LARGE, frozen_settings
from .aggregation import FIRST, SECOND
from .base import Wrapper

READ = {"momentum": ("lr", "beta1"), "adagrad": ("lr", "beta1", "tau"), "adam": ("lr", "beta1", "beta2", "tau")}
READ["yogi"] = READ["adam"]


@frozen_settings
class ServerOptimizer:
    """The server's optimizer, for methods whose server needs only means."""

    optimizer: Literal["none", "momentum", "adagrad", "adam", "yogi"] = "none"
    """none: the mean is the new model; momentum: FedAvgM; adagrad, adam, yogi: FedAdagrad, FedAdam, FedYogi."""
    lr: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """The server's learning rate (1 with momentum, otherwise 0.01 by default)."""
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Momentum: the decay rate of the mean of changes (0.9, with adagrad 0 by default)."""
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    """adam and yogi: the decay rate of the mean of squared changes (0.99 by default)."""
    tau: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """adagrad, adam and yogi: constant added to the root of squared changes, which start at its square (0.001)."""

    def __post_init__(self) -> None:
        for key in ("lr", "beta1", "beta2", "tau"):
            value = getattr(self, key)
            if value is not None and key not in READ.get(self.optimizer, ()):
                raise ConfigurationError(
                    f"server.{key} = {value} is not used by server.optimizer = {self.optimizer!r}", f"server.{key}"
                )

    def around(self, method: Method) -> Method:
        """Return the method with this optimizer at its server, or unchanged without an optimizer or a federation.
        Raises ConfigurationError for a method whose server needs more than means."""
        if self.optimizer == "none" or not method.federated:
            return method
        for step in method.schedule():
            if step.trains and not step.linear:
                raise ConfigurationError(
                    f"server.optimizer = {self.optimizer!r} does not fit {method.name!r}, whose server needs more of "
                    f"the silos' updates than their mean (task {step.name!r}); use 'none'",
                    "server.optimizer",
                )
        return Stepping(
            method, self.optimizer, self._or("lr", 1.0 if self.optimizer == "momentum" else 0.01),
            self._or("beta1", 0.0 if self.optimizer == "adagrad" else 0.9), self._or("beta2", 0.99),
            self._or("tau", 1e-3),
        )  # fmt: skip

    def _or(self, key: str, usual: float) -> float:
        value: float | None = getattr(self, key)
        return usual if value is None else value


@dataclass(frozen=True)
class Stepping(Wrapper):
    """The base, whose server takes an optimizer step along the aggregated change of the shared parameters.

    Integer tensors and buffers, such as the running statistics of BatchNorm, are not parameters: they are aggregated by
    the base, like every other group of the server's state.
    """

    optimizer: str
    lr: float
    beta1: float
    beta2: float
    tau: float

    def init_server(self, context: SiloContext) -> State:
        server = self.base.init_server(context)
        moved = parameters(server, context)
        added: State = {FIRST: {name: torch.zeros_like(tensor) for name, tensor in moved.items()}}
        if self.optimizer != "momentum":
            added[SECOND] = {name: torch.full_like(tensor, self.tau**2) for name, tensor in moved.items()}
        return server | added

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            yield replace(step, aggregate=partial(self.settle, own)) if own.trains else step

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """Aggregate as the base does, and step along the change."""
        own = {group: server[group] for group in (FIRST, SECOND) if group in server}
        after = step.aggregate({group: each for group, each in server.items() if group not in own}, replies, context)
        model, first, second = dict(after["model"]), dict(own[FIRST]), dict(own.get(SECOND, {}))
        for name in first:
            x = server["model"][name].double()
            change = after["model"][name].double() - x
            m, v, moved = self.step(change, first[name].double(), second[name].double() if second else None)
            model[name], first[name] = (x + moved).to(model[name].dtype), m.to(model[name].dtype)
            if v is not None:
                second[name] = v.to(model[name].dtype)
        return after | {"model": model, FIRST: first} | ({SECOND: second} if second else {})

    def step(self, change: Tensor, m: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the next m and v, and the change of x. With momentum only, v is None."""
        if v is None:
            m = self.beta1 * m + change
            return m, None, self.lr * m
        m, square = self.beta1 * m + (1 - self.beta1) * change, change.square()
        if self.optimizer == "adagrad":
            v = v + square
        elif self.optimizer == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        return m, v, self.lr * m / (v.sqrt() + self.tau)


def parameters(server: State, context: SiloContext) -> Tensors:
    """Return the tensors of the shared model that are parameters of the module or of a part of it."""
    known = [name for name, _ in context.module.named_parameters()]
    paths = {name.split(".", dots)[-1] for name in known for dots in range(name.count(".") + 1)}
    return {name: tensor for name, tensor in server["model"].items() if name in paths}
