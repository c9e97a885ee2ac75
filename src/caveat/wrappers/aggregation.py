"""Aggregation at the server by robust rules instead of the mean.

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

from ..core import ConfigurationError, Method, Replies, Round, RunError, SiloContext, State
from ..core.aggregation import Payload, weighted_sum
from ..core.settings import MAX_COUNT, frozen_settings
from .base import Wrapper, find
from .privacy import Private

Rule = Literal["median", "trimmed_mean", "geometric_median", "krum"]
COLUMNS = 1 << 16
"""Number of values per silo that are processed at once."""
STEPS, CLOSE = 200, 1e-10
"""Maximum number of Weiszfeld steps, and the change of a silo's weight below which they stop."""


def silos_needed(rule: Rule, max_byzantine: int) -> int:
    """Return the number of replies that a rule needs to tolerate `max_byzantine` Byzantine silos."""
    return 2 * max_byzantine + (3 if rule == "krum" else 1)


def combined(rule: Rule, payloads: Sequence[Payload], max_byzantine: int) -> Payload:
    """Aggregate the silos' payloads, which are finite and have the same form, by a rule; the result has the same form.

    Integer tensors are copied from the first silo, as for means. Raises ValueError for fewer payloads than
    `silos_needed`.
    """
    if len(payloads) < (least := silos_needed(rule, max_byzantine)):
        raise ValueError(
            f"{len(payloads)} payloads, but {rule!r} with max_byzantine = {max_byzantine} needs at least {least}"
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
                    # Without matrix products, whose rounding errors with a distant silo would exceed other distances.
                    apart += torch.cdist(columns, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    return apart


def krum_weights(apart: Tensor, max_byzantine: int) -> list[float]:
    """Return 1 for the silo with the smallest sum of squared distances to S - max_byzantine - 2 others, and else 0."""
    count = len(apart)
    nearest = apart.sort(1).values[:, 1 : count - max_byzantine - 1]  # the first one is the silo itself
    chosen = int(nearest.sum(1).argmin())
    return [float(k == chosen) for k in range(count)]


def geometric_weights(apart: Tensor) -> list[float]:
    """Return the weights of silos in their geometric median, from squared distances (S, S)."""
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


Choice = Literal["bound", "median", "trimmed_mean", "geometric_median", "krum", "off"]


@frozen_settings
class Robust:
    """Protection of a federation from malicious silos."""

    rule: Choice = "bound"
    """bound: the mean of updates that are scaled down to at most four times the usual norm; median, trimmed_mean,
    geometric_median, krum: robust rules instead of the mean; off: the plain mean."""
    max_byzantine: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Assumed maximum number of malicious silos per round, for the robust aggregation rules (1 by default)."""

    def __post_init__(self) -> None:
        if self.max_byzantine is not None and self.rule not in get_args(Rule):
            raise ConfigurationError(
                f"federation.max_byzantine = {self.max_byzantine} is not used by federation.robust = {self.rule!r}, "
                f"only by {', '.join(get_args(Rule))}",
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
        """Return the method with a robust rule instead of means, for `silos` silos per round; without a rule, the same.

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
        for step in method.schedule():
            if counts(step) and not step.linear:
                raise ConfigurationError(
                    f"{where} does not fit {method.name!r}, whose server needs more of the silos' updates than their "
                    f"mean (task {step.name!r}); use 'bound' or 'off'",
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

    All replies of such a round are kept until the last one arrives. The rule also aggregates other rounds that training
    depends on; all remaining rounds are summed as usual.
    """

    rule: Rule
    max_byzantine: int

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            yield replace(step, aggregate=partial(self.settle, own), linear=None) if counts(own) else step

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """Aggregate as the base does, with the rule's result in place of means. Raises RunError for too few replies."""
        if len(replies) < (least := silos_needed(self.rule, self.max_byzantine)):
            raise RunError(
                f"task {step.name!r}: {len(replies)} silos replied, but federation.robust = {self.rule!r} needs "
                f"{least} with federation.max_byzantine = {self.max_byzantine}; earlier checkpoints are kept"
            )
        means = combined(self.rule, [update.payload for update in replies.updates.values()], self.max_byzantine)
        forms = {silo: update.form() for silo, update in replies.updates.items()}
        return step.aggregate(server, Replies(forms, replies.population, replies.left_out, means), context)
