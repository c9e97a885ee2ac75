"""Local training: the only loop over batches, and the class weights in its loss.

A plan of a run may watch the batches and train on a few of them; training in a real run always uses all batches.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import field, fields
from functools import lru_cache
from itertools import chain, islice
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PlainValidator
from torch import Tensor, nn

from ..core import ConfigurationError, SiloContext
from ..core.devices import CPU, brought
from ..core.errors import short_repr
from ..core.quantity import Quantity
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from .modules import in_bfloat16, learning, to_train, without_gradients
from .optimizers import SGD, Adam, AdamW, Moments, Optimizer
from .vectorized_task import FitCall, VectorizedContext

Watcher = Callable[["Training", int, Iterator[Tensor]], Iterator[Tensor]]
"""Takes the settings, the number of examples and all batches of one call of `Training.fit`; returns those to train on.
"""
_WATCHER = ContextVar[Watcher | None]("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Pass batches through a watcher within this context, and in processes forked within it."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def _weights(value: object) -> str | tuple[float, ...]:
    if isinstance(value, str) and value in ("none", "balanced"):
        return value
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        numbers = ()
    if not any(numbers) or not all(math.isfinite(each) and 0 <= each <= LARGE for each in numbers):
        raise ValueError(f"must be none, balanced or a list of numbers from 0 to {LARGE:g}, one per class, not all 0")
    return tuple(map(float, numbers))


ClassWeights = Annotated[str | tuple[float, ...], PlainValidator(_weights)]
"""none, balanced, or a number per class."""


def balanced(y: Tensor) -> tuple[float, ...]:
    """Return n / (K n_c) for each class c, where K classes occur in labels (N,): all classes have the same total
    weight.

    King & Zeng, Logistic Regression in Rare Events Data, 2001. The mean weight of an example is 1; classes without
    examples have weight 0.
    """
    counts = torch.bincount(y).double()
    present = int((counts > 0).sum())
    return tuple(torch.where(counts > 0, len(y) / (present * counts), 0.0).tolist())


Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps a batch of inputs and labels to a scalar."""


@lru_cache(maxsize=16)
def _class_weights(weights: tuple[float, ...], classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (K,) class weights, 0 beyond the list, on a device, to which they are copied only once."""
    given = torch.tensor(weights[:classes], dtype=dtype)
    return brought(F.pad(given, (0, classes - len(given))), device)


LABELS = ("class_weights", "label_smoothing")
"""Keys of the cross-entropy loss, which have no effect in methods with other losses."""


@frozen_settings
class Training:
    """How a silo trains in one round."""

    local_epochs: Annotated[float, Field(gt=0, le=MAX_COUNT)] | None = None
    """Passes over a silo's training data per round (1 unless `local_steps` is given). With a fraction such as 0.5,
    training uses the nearest number of batches of a shuffled pass, at least one."""
    local_steps: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Number of optimizer steps per round, instead of epochs."""
    batch_size: Annotated[int, Field(gt=1, le=MAX_COUNT)] = 64
    """Number of examples per step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """sgd, adam or adamw, whose weight decay is decoupled from the gradient."""
    lr: Annotated[float, Field(gt=0)] = 0.001
    """Learning rate."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor applied to the learning rate after every round of the schedule, including rounds that only measure."""
    lr_hold: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """Number of rounds of the schedule before the learning rate begins to decay."""
    lr_schedule: Literal["exponential", "cosine"] = "exponential"
    """exponential: the learning rate decays by lr_decay, which is 1 unless given; cosine: it falls along half a cosine,
    towards 0 after the last training round."""
    warmup: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """Number of rounds of the schedule in which the learning rate grows in equal steps to its full value."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd."""
    weight_decay: Annotated[float, Field(ge=0, le=LARGE)] = 0.0
    """L2 penalty, as in torch's optimizers; for adamw, weights shrink by lr times this in each step."""
    clip_norm: Annotated[float, Field(gt=0, le=LARGE)] | None = None
    """Gradient clipping: maximum L2 norm of the gradient in a step (no clipping by default)."""
    optimizer_state: Literal["reset", "keep", "average"] = "reset"
    """Optimizer state (moments, momentum) between rounds. reset: it is discarded; keep: each silo keeps its own;
    average: it is averaged and sent with the model, except for private parts, whose state stays at the silo."""
    class_weights: ClassWeights = "none"
    """Class weights in the cross-entropy: none, balanced (all classes of a silo's training data have equal weight), or
    a list of numbers, one per class."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing: share of a label that is spread over all classes in the cross-entropy."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of encoders in training: float32, or bfloat16, which is faster if the processor supports it (AVX-512
    BF16, AMX). Weights, heads, losses, averages and predictions are float32 with both."""

    def __post_init__(self) -> None:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ConfigurationError(
                f"training.local_epochs = {self.local_epochs:g} and training.local_steps = {self.local_steps}: "
                "set only one",
                "training.local_epochs",
            )
        if self.local_epochs is not None and self.local_epochs == int(self.local_epochs):
            object.__setattr__(self, "local_epochs", int(self.local_epochs))  # as given
        if self.momentum and self.optimizer != "sgd":
            self._refuse("momentum", f"has no effect with training.optimizer = {self.optimizer!r}")
        if self.optimizer_state != "reset" and self.optimizer == "sgd" and not self.momentum:
            self._refuse("optimizer_state", "has no effect with 'sgd' without momentum, which has no state")
        for key in ("lr_decay", "lr_hold") if self.lr_schedule == "cosine" else ():
            if getattr(self, key) != getattr(type(self), key):
                self._refuse(key, "has no effect with training.lr_schedule = 'cosine'")

    def _refuse(self, key: str, why: str) -> None:
        raise ConfigurationError(f"training.{key} = {short_repr(getattr(self, key))} {why}", f"training.{key}")

    def check_classes(self, classes: int) -> None:
        """Raise ConfigurationError for a list of class weights whose length is not the number of classes."""
        if isinstance(self.class_weights, tuple) and len(self.class_weights) != classes:
            raise ConfigurationError(
                f"training.class_weights has {len(self.class_weights)} numbers, but there are {classes} classes",
                "training.class_weights",
            )

    def leave(self, method: str, why: str, *keys: str) -> None:
        """Raise ConfigurationError unless the keys that a method does not use have their defaults."""
        usual = {field.name: field.default for field in fields(type(self))}
        for key in keys:
            if getattr(self, key) != usual[key]:
                self._refuse(key, f"cannot be used with {method!r}: {why}")

    def fit(
        self,
        context: SiloContext,
        loss: Loss,
        correct: Callable[[str, Tensor], Tensor] | None = None,
        frozen: frozenset[str] = frozenset(),
        moments: Moments | None = None,
        undecayed: frozenset[str] = frozenset(),
    ) -> int:
        """Minimize `loss` over the silo's training data in its workspace; return the number of steps.

        `correct` maps a parameter's name and gradient to the gradient that the optimizer sees, before it is clipped;
        parameters named in `frozen` do not change, and those in `undecayed` have no weight decay. `moments` are the
        optimizer's initial state, replaced by its final one; by default the moments of the context, unless
        `optimizer_state` is "reset". Raises ConfigurationError if `precision` is "bfloat16" and the workspace has no
        encoder.
        """
        if isinstance(context, VectorizedContext):
            return self._fit_vectorized(context, loss, correct, frozen, moments, undecayed)
        learns = learning(context.module)
        if context.fitted is not None:
            frozen = frozen | (learns.keys() - context.fitted)
        parameters = {name: p for name, p in learns.items() if name not in frozen}
        optimizer = self.make_optimizer(parameters, self.rate(context))
        optimizer.undecayed = undecayed
        carried = context.moments if moments is None and self.optimizer_state != "reset" else None
        if carried is not None:
            moments = Moments(carried)
        if moments is not None:
            moments.give(optimizer)
        to_train(context.module)
        batches = self.batches(context.examples, context.train.counted_on)
        if (watcher := _WATCHER.get()) is not None:
            batches = watcher(self, context.examples, batches)
        steps = 0
        still = without_gradients(p for name, p in learns.items() if name in frozen)
        with still, in_bfloat16(context.module) if self.precision == "bfloat16" else nullcontext():
            for batch in batches:
                optimizer.zero_grad()
                loss(*context.train.batch(batch)).backward()  # type: ignore[no-untyped-call]
                if correct is not None:
                    for name, p in parameters.items():
                        if p.grad is not None:
                            p.grad = correct(name, p.grad)
                if self.clip_norm is not None:
                    nn.utils.clip_grad_norm_(parameters.values(), self.clip_norm)
                optimizer.step()
                steps += 1
        if moments is not None:
            moments.take(optimizer)
            if carried is not None:
                carried.update(moments.tensors)
        return steps

    def _fit_vectorized(
        self,
        context: VectorizedContext,
        loss: Loss,
        correct: Callable[[str, Tensor], Tensor] | None,
        frozen: frozenset[str],
        moments: Moments | None,
        undecayed: frozenset[str],
    ) -> int:
        """Do what `fit` does, for many silos at once; the number of steps is a tensor."""
        carried = context.moments if moments is None and self.optimizer_state != "reset" else None
        if carried is not None:
            moments = Moments(carried)
        steps, after = context.trainer(
            FitCall(self, context, loss, correct, frozen, None if moments is None else moments.tensors, undecayed)
        )
        if moments is not None:
            moments.tensors = moments.tensors | after
        if carried is not None:
            carried.update(after)
        return cast(int, steps)

    def rate(self, context: SiloContext) -> float:
        """Return the learning rate in the context's round.

        With cosine, it is lr (1 + cos(pi (t - warmup) / (T - warmup))) / 2 in round t of a schedule whose last training
        round is T - 1 (Loshchilov & Hutter, SGDR, ICLR 2017, eq. 5 without restarts); later rounds keep the rate of
        that round. During warmup, the rate of round t is multiplied by (t + 1) / (warmup + 1) (Goyal et al., arXiv
        1706.02677, 2017).
        """
        if self.lr_schedule == "cosine":
            t, span = min(context.round, max(context.horizon, 1) - 1), max(context.horizon - self.warmup, 1)
            rate = self.lr * (1 + math.cos(math.pi * max(t - self.warmup, 0) / span)) / 2
        else:
            rate = self.lr * self.lr_decay ** max(context.round - self.lr_hold, 0)
        return rate * (context.round + 1) / (self.warmup + 1) if context.round < self.warmup else rate

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of logits (N, K) and labels (N,), as `torch.nn.functional.cross_entropy` does.

        With class weights, the sum is divided by the total weight of the labels; the result is 0 if this total is 0.
        Classes beyond the list of weights have weight 0.
        """
        if not isinstance(self.class_weights, tuple):
            return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        weights = _class_weights(self.class_weights, logits.shape[-1], logits.dtype, logits.device)
        labelled = (weights[y.clamp_min(0)] * (y >= 0)).sum() >= torch.finfo(weights.dtype).tiny
        divisible = torch.where(labelled, weights, 1.0)  # 0 / 0 would be NaN, and so would its gradient
        return F.cross_entropy(logits, y, divisible, label_smoothing=self.label_smoothing) * labelled

    def smoothed(self, target: Quantity) -> "BarTraining":
        """Return this training with a loss for the bars of a quantity."""
        return BarTraining(**{each.name: getattr(self, each.name) for each in fields(Training)}, target=target)

    def batches(
        self, examples: int, device: torch.device = CPU, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Return one round's index batches on a device, reshuffled every epoch by a generator on the CPU. The generator
        is torch's global one by default, so examples come in the same order on all devices."""
        if self.local_steps is not None:
            endless = chain.from_iterable(self._epoch(examples, device, generator) for _ in iter(int, 1))
            return islice(endless, self.local_steps)
        epochs = self.local_epochs or 1
        whole = int(epochs)
        # The order of an epoch is drawn when it begins, because the model may draw random numbers in between.
        drawn = chain.from_iterable(self._epoch(examples, device, generator) for _ in range(whole))
        if epochs == whole:
            return drawn
        return chain(drawn, self._part(examples, epochs - whole, 0 if whole else 1, device, generator))

    def _part(
        self, examples: int, share: float, least: int, device: torch.device, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        batches = self._epoch(examples, device, generator)
        yield from batches[: max(least, round(share * len(batches)))]

    def _epoch(self, examples: int, device: torch.device, generator: torch.Generator | None) -> list[Tensor]:
        # Copied once per epoch, so no batch waits for a device.
        order = torch.randperm(examples, generator=generator)
        batches = list(torch.split(brought(order, device), self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # BatchNorm cannot take a last batch of one example, which should not be dropped either.
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def make_optimizer(self, parameters: Mapping[str, nn.Parameter], lr: float) -> Optimizer:
        """Return a new optimizer for these parameters with a learning rate."""
        if self.optimizer == "sgd":
            return SGD(parameters, lr, self.weight_decay, self.momentum)
        return (AdamW if self.optimizer == "adamw" else Adam)(parameters, lr, self.weight_decay)

    @property
    def remembered(self) -> tuple[str, ...]:
        """Names of the optimizer's state per parameter, as in torch."""
        return SGD.parts if self.optimizer == "sgd" else Adam.parts


@frozen_settings
class BarTraining(Training):
    """Training for a quantity, whose labels are bars."""

    target: Quantity = field(kw_only=True)
    """The quantity."""

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of logits (N, C) for labels (N,) of the target, omitting negative ones."""
        each, known = self.target.loss(logits.log_softmax(-1), y.clamp_min(0)), y >= 0
        return (each * known).sum() / known.sum()
