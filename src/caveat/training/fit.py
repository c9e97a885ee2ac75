"""Training inside one silo: the only loop over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, islice
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import ConfigurationError, Site, Tensors
from ..core.settings import LARGE, MANY, frozen_settings
from .modules import learning, to_train
from .optimizers import SGD, Adam, Optimizer
from .precision import in_bfloat16

Loss = Callable[[Tensor, Tensor], Tensor]
"""A batch of inputs and labels to a scalar."""


class Moments:
    """Adam's running means of gradients and of their squares, carried from one training to the next."""

    NAMES = ("exp_avg", "exp_avg_sq", "step")

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        """The moments by names such as "exp_avg.PARAMETER"; empty before the first step."""

    def give(self, optimizer: Adam) -> None:
        """Have an optimiser start from copies of these moments."""
        for name, parameter in optimizer.parameters.items():
            if f"step.{name}" in self.tensors:
                optimizer.state[name] = {
                    part: torch.empty_like(parameter).copy_(tensor) if tensor.ndim else tensor.clone()
                    for part, tensor in ((part, self.tensors[f"{part}.{name}"]) for part in self.NAMES)
                }

    def take(self, optimizer: Adam) -> None:
        """Replace these moments by copies of what an optimiser has come to."""
        self.tensors = {
            f"{part}.{name}": optimizer.state[name][part].clone(memory_format=torch.contiguous_format)
            for name in optimizer.parameters
            if name in optimizer.state
            for part in self.NAMES
        }


@frozen_settings
class Training:
    """How a silo trains in one round. The optimiser starts afresh every round."""

    local_epochs: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """Passes over a silo's training data per round (1 unless `local_steps` is given)."""
    local_steps: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """Optimiser steps per round, instead of epochs."""
    batch_size: Annotated[int, Field(gt=1, le=MANY)] = 64
    """Examples per step."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """sgd or adam."""
    lr: Annotated[float, Field(gt=0)] = 0.001
    """Learning rate."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the learning rate after every round of the schedule, those that only measure included."""
    lr_hold: Annotated[int, Field(ge=0, le=MANY)] = 0
    """Rounds of the schedule before the learning rate begins to decay."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd."""
    weight_decay: Annotated[float, Field(ge=0, le=LARGE)] = 0.0
    """L2 penalty, as torch's optimisers apply it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of encoders in training: float32, or bfloat16, faster where the processor has it (AVX-512 BF16, AMX).
    Weights, heads, losses, averages and predictions are float32 with both."""

    def __post_init__(self) -> None:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ConfigurationError(
                f"training.local_epochs = {self.local_epochs} and training.local_steps = {self.local_steps}: give one",
                "training.local_epochs",
            )
        if self.momentum and self.optimizer != "sgd":
            raise ConfigurationError(
                f"training.momentum = {self.momentum} has no meaning for {self.optimizer!r}", "training.momentum"
            )

    def fit(
        self,
        site: Site,
        loss: Loss,
        correct: Callable[[str, Tensor], Tensor] | None = None,
        frozen: frozenset[str] = frozenset(),
        moments: Moments | None = None,
    ) -> int:
        """Minimise `loss` over the site's training data in its workspace; return the number of steps.

        `correct` maps a parameter's name and gradient to the gradient that the optimiser sees; parameters
        named in `frozen` stay as they are. `moments` are what Adam starts from, and what it ends with.
        Raises ConfigurationError if encoders are to compute in bfloat16 and the workspace has none.
        """
        parameters = {name: p for name, p in learning(site.module).items() if name not in frozen}
        optimizer = self._optimizer(parameters, self.rate(site))
        if moments is not None and isinstance(optimizer, Adam):
            moments.give(optimizer)
        to_train(site.module)
        steps = 0
        with in_bfloat16(site.module) if self.precision == "bfloat16" else nullcontext():
            for batch in self.batches(site.examples):
                optimizer.zero_grad()
                loss(site.train.x[batch], site.train.y[batch]).backward()  # type: ignore[no-untyped-call]
                if correct is not None:
                    for name, p in parameters.items():
                        if p.grad is not None:
                            p.grad = correct(name, p.grad)
                optimizer.step()
                steps += 1
        if moments is not None and isinstance(optimizer, Adam):
            moments.take(optimizer)
        return steps

    def rate(self, site: Site) -> float:
        """The learning rate in the site's round."""
        return self.lr * self.lr_decay ** max(site.round - self.lr_hold, 0)

    def batches(self, examples: int) -> Iterator[Tensor]:
        """One round's index batches, reshuffled every epoch by torch's global generator."""
        if self.local_steps is not None:
            endless = chain.from_iterable(self._epoch(examples) for _ in iter(int, 1))
            return islice(endless, self.local_steps)
        return chain.from_iterable(self._epoch(examples) for _ in range(self.local_epochs or 1))

    def _epoch(self, examples: int) -> list[Tensor]:
        batches = list(torch.split(torch.randperm(examples), self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # BatchNorm has no variance of one example, and the example should count.
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _optimizer(self, parameters: Mapping[str, nn.Parameter], lr: float) -> Optimizer:
        if self.optimizer == "sgd":
            return SGD(parameters, lr, self.weight_decay, self.momentum)
        return Adam(parameters, lr, self.weight_decay)
