"""SGD and Adam by torch's fused kernels: the same bits as `torch.optim.SGD` and `torch.optim.Adam` with `fused=True`.

The first of those classes that a process uses imports torch's compiler, which takes more than a second and more
memory than the module; the functions behind them, which are called here, do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer(ABC):
    """Changes parameters by their gradients; those without a gradient stay as they are."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        self.parameters, self.lr, self.weight_decay = parameters, lr, weight_decay

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change all parameters that have a gradient."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        self._change({name: self.parameters[name] for name in gradients}, gradients)

    @abstractmethod
    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Change parameters in place by the gradients of the same names."""


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is above 0."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], lr: float, weight_decay: float = 0.0, momentum: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum = momentum
        self.buffers: dict[str, Tensor | None] = {}

    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        buffers = [self.buffers.get(name) for name in parameters]
        sgd(
            list(parameters.values()), list(gradients.values()), buffers, fused=True, weight_decay=self.weight_decay,
            momentum=self.momentum, lr=self.lr, dampening=0, nesterov=False, maximize=False,
        )  # fmt: skip
        self.buffers |= zip(parameters, buffers, strict=True)


class Adam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015) with its usual constants."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.state: dict[str, dict[str, Tensor]] = {}
        """By parameter: `exp_avg` and `exp_avg_sq`, the running means of gradients and of their squares, and `step`,
        how many there were. A parameter has them from its first gradient on."""

    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        for name in parameters.keys() - self.state.keys():
            moments = {part: torch.zeros_like(parameters[name]) for part in ("exp_avg", "exp_avg_sq")}
            self.state[name] = moments | {"step": torch.zeros(())}
        means, squares, steps = (
            [self.state[name][part] for name in parameters] for part in ("exp_avg", "exp_avg_sq", "step")
        )
        adam(
            list(parameters.values()), list(gradients.values()), means, squares, [], steps, fused=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.lr, weight_decay=self.weight_decay, eps=1e-8, maximize=False,
        )  # fmt: skip
