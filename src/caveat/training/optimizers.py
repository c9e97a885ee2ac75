"""SGD, Adam and AdamW by torch's fused kernels, bit-identical to torch's own classes with `fused=True`.

The first use of those classes in a process imports torch's compiler, which takes more than a second and more memory
than the module; the underlying functions, which are called here, do not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ..core import Tensors


class Optimizer(ABC):
    """Update parameters by their gradients; parameters without a gradient do not change."""

    parts: tuple[str, ...]
    """Names of the tensors in the state of a parameter, as in torch."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        self.parameters, self.lr, self.weight_decay = parameters, lr, weight_decay
        self.undecayed = frozenset[str]()
        """Names of parameters to which the weight decay does not apply."""
        self.state: dict[str, dict[str, Tensor]] = {}
        """State by parameter, which starts with the first gradient."""

    def zero_grad(self) -> None:
        """Remove all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        self.change({name: self.parameters[name] for name in gradients}, gradients)

    def change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Update parameters in place by the gradients of the same names."""
        if not self.undecayed:
            self._change(parameters, gradients, self.weight_decay)
            return
        for decay in (True, False):
            if names := [name for name in gradients if (name not in self.undecayed) == decay]:
                some = {name: parameters[name] for name in names}
                self._change(some, {name: gradients[name] for name in names}, self.weight_decay * decay)

    @abstractmethod
    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], weight_decay: float) -> None:
        """Update some or all parameters in place by the gradients of the same names."""


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is above 0."""

    parts = ("momentum_buffer",)

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], lr: float, weight_decay: float = 0.0, momentum: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum = momentum

    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], weight_decay: float) -> None:
        buffers: list[Tensor | None] = [self.state.get(name, {}).get("momentum_buffer") for name in parameters]
        if any(buffer is not None for buffer in buffers):  # torch takes buffers for all or none; the initial value is 0
            buffers = [
                torch.zeros_like(parameter) if buffer is None else buffer
                for parameter, buffer in zip(parameters.values(), buffers, strict=True)
            ]
        sgd(
            list(parameters.values()), list(gradients.values()), buffers, fused=True, weight_decay=weight_decay,
            momentum=self.momentum, lr=self.lr, dampening=0, nesterov=False, maximize=False,
        )  # fmt: skip
        for name, buffer in zip(parameters, buffers, strict=True):
            if buffer is not None:
                self.state[name] = {"momentum_buffer": buffer}


class Adam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015) with its usual constants. The state consists of `exp_avg` and `exp_avg_sq`, the
    running means of gradients and of their squares, and `step`, the number of steps."""

    parts = ("exp_avg", "exp_avg_sq", "step")
    function: Callable[..., None] = staticmethod(adam)

    def _change(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], weight_decay: float) -> None:
        for name in parameters.keys() - self.state.keys():
            moments = {part: torch.zeros_like(parameters[name]) for part in ("exp_avg", "exp_avg_sq")}
            self.state[name] = moments | {"step": torch.zeros((), device=parameters[name].device)}
        means, squares, steps = (
            [self.state[name][part] for name in parameters] for part in ("exp_avg", "exp_avg_sq", "step")
        )
        self.function(
            list(parameters.values()), list(gradients.values()), means, squares, [], steps, fused=True, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.lr, weight_decay=weight_decay, eps=1e-8, maximize=False,
        )  # fmt: skip


class AdamW(Adam):
    """Adam with decoupled decay: weights shrink by lr times weight_decay (Loshchilov & Hutter, ICLR 2019)."""

    function = staticmethod(adamw)


class Moments:
    """Optimizer state that is passed from one call of `fit` to the next: running means and numbers of steps."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        """By names such as "exp_avg.PARAMETER"; missing parameters start with no state."""

    def give(self, optimizer: Optimizer) -> None:
        """Set an optimizer's state to copies of these tensors."""
        for name, parameter in optimizer.parameters.items():
            if f"{optimizer.parts[-1]}.{name}" in self.tensors:
                optimizer.state[name] = {
                    part: torch.empty_like(parameter).copy_(tensor) if tensor.ndim else tensor.clone()
                    for part, tensor in ((part, self.tensors[f"{part}.{name}"]) for part in optimizer.parts)
                }

    def take(self, optimizer: Optimizer) -> None:
        """Replace these tensors by copies of an optimizer's state."""
        self.tensors = self.tensors | {
            f"{part}.{name}": optimizer.state[name][part].clone(memory_format=torch.contiguous_format)
            for name in optimizer.parameters
            if name in optimizer.state
            for part in optimizer.parts
        }
