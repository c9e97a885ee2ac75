"""Per-FedAvg: a global model that becomes a good local model after one gradient step at a silo.

Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach,
NeurIPS 2020, Algorithm 1, with the approximations FO and HF of its section 5.

Our choices: a batch is split into the independent parts D, D', D'' that the algorithm draws (a batch too small to be
split is used for each of them); the finite difference of HF has a fixed step of 0.01 along v, whatever the norm of v,
because a fixed multiple of v is lost in float32 rounding; and BatchNorm statistics come from the global model, not from
adapted models. The kinks of ReLU and max-pooling make any finite difference inexact: HF removes nearly all of FO's
error in a small multi-layer perceptron, but only about half of it in a residual network.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..core import ConfigurationError, Decision, Payload, Round, SiloContext, State, Tensors, Update, seeded
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..training.fit import Loss
from ..training.modules import learning, load, snapshot
from .fedavg import FedAvg

DISTANCE = 0.01
"""Norm of the step along v in the finite difference of HF."""


@frozen_settings
class PerFedAvg(FedAvg):
    """FedAvg of the loss after one adaptation step; silos adapt at the end (Fallah et al., 2020)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    order: Literal["first", "hessian-free"] = "first"
    """Gradient through the adaptation step: first omits second derivatives, hessian-free estimates them by a finite
    difference of two more gradients."""
    adapt_lr: Annotated[float, Field(gt=0, le=LARGE)] = 0.01
    """alpha: learning rate of adaptation with plain SGD, in training and at the end; `training` sets beta."""
    adapt_steps: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 1
    """Number of adaptation steps after the last round; training optimizes for one."""

    def __post_init__(self) -> None:
        if self.order == "hessian-free" and self.training.precision != "float32":
            raise ConfigurationError(
                f"method.order = 'hessian-free' needs training.precision = 'float32', not "
                f"{self.training.precision!r}, because rounding would dominate a difference of two gradients; "
                "or set method.order = 'first'",
                "training.precision",
            )

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.personalise, everyone=True, trains=False, linear="examples", name="personalise"
        )

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        """Return a loss whose gradient is Per-FedAvg's gradient, and whose value is meaningless."""

        def surrogate(x: Tensor, y: Tensor) -> Tensor:
            w = learning(module)
            direction = self.direction(module, x, y)
            return torch.stack([(w[name] * step).sum() for name, step in direction.items()]).sum()

        return surrogate

    def direction(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensors:
        """Return (I - alpha H(w; D'')) grad f(w - alpha grad f(w; D); D') at parameters w; order = first omits H."""
        w = {name: p.detach() for name, p in learning(module).items()}
        count = 2 if self.order == "first" else 3
        parts = list(zip(x.chunk(count), y.chunk(count), strict=True))
        if len(parts) < count or min(len(labels) for _, labels in parts) < 2:
            parts = [(x, y)] * count  # BatchNorm cannot compute the variance of one example
        inner = self.gradient(module, w, *parts[0], dict(module.named_buffers()))
        v = self.gradient(module, moved(w, inner, -self.adapt_lr), *parts[1])
        if self.order == "first":
            return v
        length = torch.stack([part.norm() for part in v.values()]).norm().clamp_min(1e-12)
        delta = DISTANCE / length.double()  # a tensor, so the device is not synchronized
        seed = int(torch.randint(2**62, ()))
        sides = []
        for side in (delta, -delta):
            with seeded("hessian-free", seed):  # different dropout masks would dominate the difference
                sides.append(self.gradient(module, moved(w, v, side), *parts[2]))
        return {name: v[name] - self.adapt_lr * (sides[0][name] - sides[1][name]) / (2 * delta) for name in v}

    def gradient(self, module: nn.Module, w: Tensors, x: Tensor, y: Tensor, buffers: Tensors | None = None) -> Tensors:
        """Return the gradient of a batch's cross-entropy at parameters w; only the given `buffers` are updated."""
        w = {name: tensor.detach().requires_grad_() for name, tensor in w.items()}
        if buffers is None:
            buffers = {name: tensor.clone() for name, tensor in module.named_buffers()}
        loss = self.training.cross_entropy(functional_call(module, w | buffers, (x,)), y)
        return dict(zip(w, torch.autograd.grad(loss, list(w.values()), materialize_grads=True), strict=True))

    def personalise(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Adapt a copy of the global model, and keep it."""
        module = load(context.module, down["model"])
        adaptation = replace(
            self.training, local_epochs=None, local_steps=self.adapt_steps, optimizer="sgd", lr=self.adapt_lr,
            lr_decay=1.0, lr_hold=0, lr_schedule="exponential", warmup=0, momentum=0.0, weight_decay=0.0,
            optimizer_state="reset",
        )  # fmt: skip
        adaptation.fit(context, super().objective(module, down))
        return Update({}, context.examples), state | {"own": snapshot(module)}


def moved(w: Tensors, along: Tensors, by: float | Tensor) -> Tensors:
    """Return the parameters w + by * along."""
    return {name: tensor + by * along[name] for name, tensor in w.items()}
