"""Silo-level differential privacy: each silo clips its training updates and adds noise to them.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, with fixed weights and one clip
norm over all tensors; the noise is split among the silos as in Kairouz, Liu & Steinke, The Distributed Discrete
Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021, but is continuous.

Epsilon: two runs are neighbors if they differ in one silo, whose updates are zero in all rounds of one run. A clipped
update changes the sum by at most the clip norm. If two runs differ in one row of a silo that takes part in both, its
update is clipped in both and may have the opposite direction: the sum changes by up to twice the clip norm, which has
the effect of half the noise. Rounds are composed by Renyi differential privacy (Mironov, CSF 2017), with Google's
`dp-accounting`, without amplification by sampling, because everyone may know who took part.

Limits: Gaussian noise in floating point has gaps that can distinguish neighbors (Mironov, On Significance of the Least
Significant Bits for Differential Privacy, CCS 2012), which is not addressed here. Without secure aggregation, the
server sees each silo's update with that silo's noise only, whose multiplier is noise / sqrt(silos); everyone else sees
sums. With secure aggregation (`where = "sum"`), the server sees sums, too. Noise is then rounded to float32 and to
fixed point before it is summed, and accounted as if it were not: the steps of 2^-32 are far smaller than its deviation.
Only messages of training rounds are covered: not calibration after training, evaluation, or what silos report about
their data before the first round.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from scipy.special import ndtri
from torch import Tensor

from ..core import (
    ConfigurationError,
    Method,
    Payload,
    Replies,
    Round,
    SiloContext,
    SiloId,
    SiloTask,
    State,
    Tensors,
    Update,
)
from ..core.devices import home
from ..core.settings import LARGE, frozen_settings
from .base import Wrapper, find
from .training_options import Carried

VARIANCE = "running_var"
"""Torch's name for the variance in normalization with running statistics."""


@dataclass(frozen=True)
class Private(Wrapper):
    """The base, with the updates of every silo clipped to the norm `clip_norm` and noise added.

    An update is what a silo sends minus what it was sent, over all groups together. It includes BatchNorm's running
    statistics, which are averages of the silo's data. Large ones use up the clip norm, so models without BatchNorm, or
    methods that keep it at the silo, learn better. Integer tensors are sent back unchanged, because a counter of
    batches reveals the number of examples. Every update has weight 1, so no silo can move the mean further than
    another.

    Raises ConfigurationError for a value out of range, and for a base whose training cannot be protected this way.
    """

    clip_norm: float
    """Maximum L2 norm of an update, above 0."""
    noise_multiplier: float
    """Noise multiplier, 0 or more: standard deviation of the noise in the sum over `silos` silos, divided by
    `clip_norm`."""
    silos: int
    """Number of silos, above 0, whose noise adds up to the noise multiplier: the number in a round, or one less than in
    the smallest secure sum."""

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm < math.inf:
            raise ConfigurationError(f"clip_norm = {self.clip_norm}: expected a finite number above 0")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ConfigurationError(f"noise_multiplier = {self.noise_multiplier}: expected a finite number, 0 or more")
        if self.silos < 1:
            raise ConfigurationError(f"silos = {self.silos}: expected the number of silos in a round, 1 or more")
        check_private(self.base)

    @property
    def covers(self) -> tuple[str, ...]:
        """Names of the rounds whose updates are clipped and noised."""
        return tuple(dict.fromkeys(step.name for step in self.base.schedule() if step.trains))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each number that a silo sends."""
        return self.noise_multiplier * self.clip_norm / math.sqrt(self.silos)

    def schedule(self) -> Iterable[Round]:
        for own, step in zip(self.base.schedule(), super().schedule(), strict=True):
            # Keeps the base's name and random numbers, but runs here.
            protected = replace(
                own, task=self.train, aggregate=partial(self.settle, own), linear="silos", path="",
                honest_norm=self.honest_norm,
            )  # fmt: skip
            if step.trains:
                yield protected
            else:
                # If only a mean is needed, silos need not reveal their sizes.
                yield replace(step, task=partial(self.alike, own.task), linear="silos") if step.linear else step

    def honest_norm(self, sent: Payload) -> float:
        """Return a norm that a clipped update with noise exceeds with probability 1e-8; scaling would reduce noise."""
        count = sum(t.numel() for tensors in sent.values() for t in tensors.values() if t.is_floating_point())
        return self.clip_norm + self.deviation * (math.sqrt(count) + 6)

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run the base's client task of the round, and clip and noise its update. Raises ConfigurationError if it sends
        anything except new values of tensors that it was sent."""
        step = next(islice(self.base.schedule(), context.round, None))
        update, after = step.task(down, state, context)
        down, update = home(down), home(update)  # clipped and noised on the CPU for any device
        check_sent(self.name, down, update.payload)
        clipped = clip(down, update.payload, self.clip_norm)
        nonce = fingerprint(context, clipped)
        payload: Payload = {}
        for group, tensors in update.payload.items():
            payload[group] = {}
            for name, tensor in tensors.items():
                before = down[group][name]
                if tensor.is_floating_point():
                    moved = clipped[group][name] + self.deviation * normal(tensor.shape, nonce, group, name)
                    payload[group][name] = (before.double() + moved).to(tensor.dtype)
                else:
                    payload[group][name] = before.clone()
        return Update(payload, 1), after

    def alike(self, task: SiloTask, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Run the base's client task, whose update has weight 1, as in training."""
        update, after = task(down, state, context)
        return Update(update.payload, 1), after

    def settle(self, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
        """Aggregate as the base does; a variance that is not positive because of noise keeps its old value."""
        after = step.aggregate(server, replies, context)
        return {group: positive(server.get(group, {}), tensors) for group, tensors in after.items()}


def check_private(method: Method) -> None:
    """Raise ConfigurationError unless every training round needs only the mean of what silos send."""
    if (carried := find(method, Carried)) is not None and carried.shared:
        raise ConfigurationError(
            "training.optimizer_state = 'average' cannot be used with clipping and noise, because the noise would hide "
            "the optimizer's means of squared gradients; use 'keep'",
            "training.optimizer_state",
        )
    for step in method.schedule():
        if step.trains and (not step.linear or step.origin is not None):
            raise ConfigurationError(
                f"clipping and noise do not fit {method.name!r}, whose server needs more of the silos' updates than "
                f"their mean (task {step.name!r}); only the mean would be protected"
            )
        if not step.trains and step.origin is not None:
            raise ConfigurationError(
                f"clipping and noise do not fit {method.name!r}, whose training depends on values that silos send "
                f"outside training rounds (task {step.name!r}); these values would not be protected"
            )


def check_sent(method: str, down: Payload, sent: Payload) -> None:
    """Raise ConfigurationError if a silo sends anything except new values of tensors that it was sent."""
    for group, tensors in sent.items():
        for name, tensor in tensors.items():
            known = down.get(group, {}).get(name)
            if known is None or (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise ConfigurationError(
                    f"clipping and noise do not fit {method!r}: a silo sends {group}/{name}, but was sent no tensor of "
                    "that shape and type, so the change of this tensor is undefined"
                )


def clip(down: Payload, sent: Payload, bound: float) -> Payload:
    """Return the change of every floating-point tensor, float64, scaled down to a norm of at most `bound` over all of
    them. It is not finite if any change is not finite."""
    change = {
        group: {name: t.double() - down[group][name].double() for name, t in tensors.items() if t.is_floating_point()}
        for group, tensors in sent.items()
    }
    squares = [t.square().sum() for tensors in change.values() for t in tensors.values()]
    norm = math.sqrt(sum(map(float, squares)))
    scale = min(1.0, bound / norm) if norm > 0 else 1.0
    return {group: {name: scale * t for name, t in tensors.items()} for group, tensors in change.items()}


def fingerprint(context: SiloContext, clipped: Payload) -> bytes:
    """Return (32,) bytes that depend on the silo's secret, the silo, the round and the clipped update.

    The update is included because a repeated request must not yield a second draw of noise, which could be averaged
    out, and two different requests for one round must not get the same draw, which their difference would cancel.
    """
    digest = hashlib.sha256(repr((context.secret, "noise", context.round, context.id)).encode())
    for group, tensors in clipped.items():
        for name, tensor in tensors.items():
            digest.update(repr((group, name, tuple(tensor.shape))).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.digest()


def normal(shape: torch.Size, *parts: object) -> Tensor:
    """Return standard normal numbers, float64, as a function of `parts` only.

    They come from SHAKE-256, because a change known to be 0 reveals the noise, and the state of torch's generator can
    be reconstructed from a few hundred of its numbers.
    """
    stream = hashlib.shake_256(repr(parts).encode()).digest(8 * shape.numel())
    # 52 bits and half of the last bit: exact in float64, and never 0 or 1, whose quantiles are infinite.
    uniform = ((np.frombuffer(stream, "<u8") >> 12) + 0.5) * 2.0**-52
    return torch.from_numpy(ndtri(uniform)).view(shape)


def positive(before: Tensors, after: Tensors) -> Tensors:
    """Return `after`, but with values of `before` for running variances that are not positive."""
    kept = dict(after)
    for name, tensor in after.items():
        if name.rpartition(".")[2] == VARIANCE and name in before:
            kept[name] = torch.where(tensor > 0, tensor, before[name])
    return kept


def epsilon(noise: float, rounds_replies: Sequence[int], silos: int, delta: float) -> float:
    """Return epsilon of a silo against parties that see only sums: users of the model, and the other silos.

    `rounds_replies` are the numbers of replies, the silo's own included, in each training round that the silo took part
    in; `noise` and `silos` are as in `Private`, and `delta` is between 0 and 1. Another silo knows its own noise, so
    with m replies only the noise of m - 1 protects. Infinite if a round had no noise, 0 without rounds. Raises
    ConfigurationError for a delta out of range, and if `dp-accounting` is not installed.
    """
    return composed((noise * math.sqrt((replies - 1) / silos) for replies in rounds_replies), delta)


def epsilon_against_server(noise: float, rounds: int, silos: int, delta: float) -> float:
    """Return epsilon of a silo against a server that sees each update, after `rounds` answered requests."""
    return composed([noise / math.sqrt(silos)] * rounds, delta)


def composed(multipliers: Iterable[float], delta: float) -> float:
    """Return epsilon of the composition of Gaussian mechanisms with these noise multipliers."""
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta = {delta}: expected a number above 0 and below 1")
    counted = Counter(multipliers)
    if any(multiplier <= 0 for multiplier in counted):
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigurationError('epsilon needs the package dp-accounting: pip install "caveat[privacy]"') from error
    accountant = RdpAccountant()
    for multiplier, rounds in counted.items():
        accountant.compose(GaussianDpEvent(multiplier), rounds)
    return float(accountant.get_epsilon(delta))


DELTA = 1e-5


class SentMessage(Protocol):
    """A message in the ledger: silo, position in the schedule, phase, split and size."""

    @property
    def silo(self) -> SiloId: ...
    @property
    def t(self) -> int | None: ...
    @property
    def phase(self) -> str: ...
    @property
    def split(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def examples(self) -> int | None: ...


@frozen_settings
class Privacy:
    """Silo-level differential privacy: clipping and noise for messages of training. Off unless `clip_norm` is set."""

    clip_norm: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """Maximum L2 norm of a silo's update in a round; larger updates are scaled down."""
    noise_multiplier: Annotated[float, Field(ge=0, le=LARGE)] | None = None
    """Noise multiplier: standard deviation of the noise in a round's sum, divided by `clip_norm` (1 by default)."""
    where: Literal["silo", "sum"] | None = None
    """sum: with federation.secure, the smallest sum that can be unmasked has all of the noise, even without the
    noise of one of its silos; silo (default): the sum over all silos of a round has it."""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The delta for which epsilon is reported (0.00001 by default)."""

    def __post_init__(self) -> None:
        for key in ("noise_multiplier", "where", "delta"):
            if self.clip_norm is None and getattr(self, key) is not None:
                raise ConfigurationError(
                    f"privacy.{key} = {getattr(self, key)!r} has no effect without privacy.clip_norm", f"privacy.{key}"
                )

    def around(self, method: Method, shares: int) -> Method:
        """Return the method with clipping and noise; the noise of `shares` silos adds up to the noise multiplier.
        Raises ConfigurationError for an incompatible method."""
        return method if self.clip_norm is None else Private(method, self.clip_norm, self.multiplier, shares)

    def shares(self, silos: int, least: int) -> int:
        """Return the number of silos whose noise adds up to the noise multiplier, in rounds of `silos` silos and secure
        sums of at least `least`. In a sum, one silo's noise does not count, because that silo knows it."""
        return least - 1 if self.where == "sum" else silos

    @property
    def multiplier(self) -> float:
        return 1.0 if self.noise_multiplier is None else self.noise_multiplier

    def check(self) -> None:
        """Raise ConfigurationError if epsilon could not be computed at the end."""
        if self.clip_norm is not None:
            composed([1.0], self.delta or DELTA)

    def outcome(self, messages: Iterable[SentMessage], silos: int, covers: tuple[str, ...]) -> dict[str, Any]:
        """Return the entry of a run's summary: epsilon by silo, from the messages in the ledger.

        "epsilon" is the maximum over silos against parties that see only sums. "epsilon_server" is against a server
        that sees each update, including late ones, for a silo that took part in every training round; with noise in
        sums, against a server that sees only sums and colludes with at most one of the silos. null means infinity: some
        round had no noise. Both are silo-level; "row" has both at record level, because changing one row of a silo can
        move a clipped update by twice the clip norm. All other messages are not covered.
        """
        trained, other = list[SentMessage](), set[str]()
        for message in messages:
            if message.split is None and message.phase in covers:
                trained.append(message)
            elif message.bytes or (message.examples or 0) > 1:  # otherwise it reveals nothing
                other.add(message.split or message.phase)
        replies = Counter(message.t for message in trained)
        rounds: dict[SiloId, list[int]] = {}
        for message in trained:
            rounds.setdefault(message.silo, []).append(replies[message.t])
        delta, noise = self.delta or DELTA, self.multiplier

        def epsilons(multiplier: float) -> dict[str, float | None]:
            sums = _largest(epsilon(multiplier, each, silos, delta) for each in _distinct(rounds.values()))
            single = _largest([epsilon_against_server(multiplier, len(replies), silos, delta)])
            return {"epsilon": sums, "epsilon_server": sums if self.where == "sum" else single}

        return {
            "clip_norm": self.clip_norm, "noise_multiplier": noise, "delta": delta, "where": self.where,
            **epsilons(noise),
            "row": epsilons(noise / 2),
            "covers": list(covers), "not_covered": sorted(other),
        }  # fmt: skip


def _distinct(rounds: Iterable[list[int]]) -> list[list[int]]:
    return [list(each) for each in {tuple(sorted(each)) for each in rounds}]


def _largest(values: Iterable[float]) -> float | None:
    largest = max(values, default=0.0)
    return None if largest == float("inf") else largest
