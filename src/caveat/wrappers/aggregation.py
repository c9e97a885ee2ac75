"""Aggregation at the server: robust rules instead of the mean, and optimizers that step along the mean change.

Server optimizers: Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi),
which has no bias correction; Hsu, Qi & Brown, Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification, arXiv 1909.06335, 2019, for the server's momentum (FedAvgM).

On robust rules, a few Byzantine silos have little influence. Coordinate median and trimmed mean: Yin et al.,
Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018. Geometric median: Pillutla, Kakade
& Harchaoui, Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing, 2022, by smoothed
Weiszfeld steps. Krum: Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NIPS
2017. Unlike in some of these papers, every silo has the same weight, whatever its n_k, because a malicious silo could
report a large n_k.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, cast, get_args

import torch
from pydantic import Field
from torch import Tensor

from ..core import ConfigurationError, Method, Replies, Round, RunError, SiloContext, State, Tensors
from ..core.aggregation import Payload, weighted_sum
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from .base import Wrapper, find
from .privacy import Private

Rule = Literal["median", "trimmed_mean", "geometric_median", "krum"]
COLUMNS = 1 << 16
"""Numbers per silo that are processed together."""
STEPS, CLOSE = 200, 1e-10
"""Maximum number of Weiszfeld steps, and the change of a silo's weight below which they stop."""


def silos_needed(rule: Rule, max_byzantine: int) -> int:
    """Return the number of replies that a rule needs to tolerate `max_byzantine` Byzantine silos."""
    return 2 * max_byzantine + (3 if rule == "krum" else 1)


def combined(rule: Rule, payloads: Sequence[Payload], max_byzantine: int) -> Payload:
    """Aggregate the silos' payloads, which are finite and have one form, by a rule; the result has the same form.

    Integer tensors are copied from the first silo, as for means. Raises ValueError for fewer payloads than
    `silos_needed`.
    """
    if len(payloads) < (least := silos_needed(rule, max_byzantine)):
        raise ValueError(
            f"{len(payloads)} payloads, expected at least {least} for {rule!r} and {max_byzantine} Byzantine silos"
        )
    if rule == "median":
        return _by_coordinate(payloads, (len(payloads) - 1) // 2)
    if rule == "trimmed_mean":
        return _by_coordinate(payloads, max_byzantine)
    apart = squared_distances(payloads)
    weights = krum_weights(apart, max_byzantine) if rule == "krum" else geometric_weights(apart)
    return _each(payloads, lambda tensors: weighted_sum(tensors, weights))


def squared_distances(payloads: Sequence[Payload]) -> Tensor:
    """Return (S, S) squared L2 distances between payloads, over all floating-point tensors, in float64."""
    apart = torch.zeros(len(payloads), len(payloads), dtype=torch.float64)
    for group, tensors in sorted(payloads[0].items()):
        for name, tensor in sorted(tensors.items()):
            if tensor.is_floating_point():
                for columns in _columns([payload[group][name] for payload in payloads]):
                    # Not by matrix products, in which a distant silo would swamp the other distances.
                    apart += torch.cdist(columns, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    return apart


def krum_weights(apart: Tensor, max_byzantine: int) -> list[float]:
    """Return 1 for the silo with the smallest sum of squared distances to its S - max_byzantine - 2 nearest, else 0."""
    count = len(apart)
    nearest = apart.sort(1).values[:, 1 : count - max_byzantine - 1]  # the first one is the silo itself
    chosen = int(nearest.sum(1).argmin())
    return [float(k == chosen) for k in range(count)]


def geometric_weights(apart: Tensor) -> list[float]:
    """Return the weights of silos in their geometric median, by squared distances (S, S)."""
    count = len(apart)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    smooth = 1e-6 * float(apart.sqrt().median())
    for _ in range(STEPS):
        # |x_i - z|^2 of z = sum_k w_k x_k, without computing z.
        away = (apart @ weights - weights @ apart @ weights / 2).clamp_min(0).sqrt().clamp_min(smooth)
        if not bool((away > 0).all()):
            break  # all payloads are equal
        new = 1 / away
        new = new / new.sum()
        done = float((new - weights).abs().max()) < CLOSE
        weights = new
        if done:
            break
    return [float(weight) for weight in weights]


def _by_coordinate(payloads: Sequence[Payload], cut: int) -> Payload:
    """Return the mean of each coordinate without its `cut` smallest and `cut` largest values."""

    def middle(tensors: Sequence[Tensor]) -> Tensor:
        parts = [columns.sort(0).values[cut : len(tensors) - cut].mean(0) for columns in _columns(tensors)]
        flat = torch.cat(parts) if parts else torch.zeros(0)
        return flat.to(tensors[0].dtype).view(tensors[0].shape)

    return _each(payloads, middle)


def _each(payloads: Sequence[Payload], combine: Callable[[Sequence[Tensor]], Tensor]) -> Payload:
    return {
        group: {
            name: combine([payload[group][name] for payload in payloads]) if t.is_floating_point() else t.clone()
            for name, t in tensors.items()
        }
        for group, tensors in payloads[0].items()
    }


def _columns(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield (S, at most COLUMNS) float64: tensors of one shape, flattened and stacked, block by block."""
    blocks = zip(*(torch.split(tensor.reshape(-1), COLUMNS) for tensor in tensors), strict=True)
    for block in blocks if tensors[0].numel() else ():
        yield torch.stack(block).double()


FIRST, SECOND = "server momentum", "server scale"
"""The groups of the server's state with the running means of changes (m) and of their squares (v)."""
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
    """adagrad, adam and yogi: added to the root of squared changes, which start at its square (0.001 by default)."""

    def __post_init__(self) -> None:
        for key in ("lr", "beta1", "beta2", "tau"):
            value = getattr(self, key)
            if value is not None and key not in READ.get(self.optimizer, ()):
                raise ConfigurationError(
                    f"server.{key} = {value} is ignored by server.optimizer = {self.optimizer!r}", f"server.{key}"
                )

    def around(self, method: Method) -> Method:
        """Return the method with this optimizer at its server; the method itself without an optimizer or a federation.
        Raises ConfigurationError for a method whose server needs more than means."""
        if self.optimizer == "none" or not method.federated:
            return method
        for t, step in enumerate(method.schedule()):
            if step.trains and not step.linear:
                raise ConfigurationError(
                    f"server.optimizer = {self.optimizer!r} does not fit {method.name!r}: in round {t}, {step.name!r}, "
                    "its server needs more of the silos' updates than their mean; use 'none'",
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


Choice = Literal["bound", "median", "trimmed_mean", "geometric_median", "krum", "off"]


@frozen_settings
class Robust:
    """Protection of a federation from malicious silos."""

    rule: Choice = "bound"
    """bound: norm bounding, a mean of updates of at most four times the usual norm; median, trimmed_mean,
    geometric_median, krum: robust rules instead of the mean; off: the plain mean."""
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
        """Whether rounds are checked for silos that are far from all others."""
        return self.rule != "off"

    def around(self, method: Method, silos: int) -> Method:
        """Return the method with a robust rule instead of means, for `silos` silos per round; itself without a rule.

        Raises ConfigurationError for a method whose server needs more than means, for too few silos, and with
        differential privacy, whose guarantee covers sums only.
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
                f"{where} cannot be combined with privacy.clip_norm: the noise protects the sum over silos, not "
                "the result of other rules; use 'bound' or 'off'",
                "federation.robust",
            )
        if silos < (least := silos_needed(rule, max_byzantine)):
            raise ConfigurationError(
                f"{where} with federation.max_byzantine = {max_byzantine} needs at least {least} silos in a round, but "
                f"a round has {silos}; use 'bound' or 'off'",
                "federation.robust",
            )
        return Combined(method, rule, max_byzantine)


def counts(step: Round) -> bool:
    """Return whether a malicious reply affects the model: in training, and in rounds with an `origin` of replies."""
    return step.trains or step.origin is not None


@dataclass(frozen=True)
class Combined(Wrapper):
    """The base, whose server aggregates the updates of a training round by a robust rule instead of means.

    All replies of such a round are kept until the last one arrives. Other rounds are summed as usual, except for rounds
    that training depends on.
    """

    rule: Rule
    max_byzantine: int

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            yield replace(step, aggregate=partial(self.settle, own), linear=None) if counts(own) else step

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """Aggregate as the base does, with the rule's result. Raises RunError for too few replies."""
        if len(replies) < (least := silos_needed(self.rule, self.max_byzantine)):
            raise RunError(
                f"{step.name!r}: {len(replies)} silos replied, but federation.robust = {self.rule!r} needs "
                f"{least} if {self.max_byzantine} may be malicious; earlier checkpoints are kept"
            )
        means = combined(self.rule, [update.payload for update in replies.updates.values()], self.max_byzantine)
        forms = {silo: update.form() for silo, update in replies.updates.items()}
        return step.aggregate(server, Replies(forms, replies.population, replies.left_out, means), context)
