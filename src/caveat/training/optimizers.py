"""SGD, Adam and AdamW by torch's fused kernels, bit-identical to torch's own classes with `fused=True`.

The first use of those classes in a process imports torch's compiler, which takes more than a second and more memory
than the module; the underlying functions, which are called here, do not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, product

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ..core import Tensors


class Optimizer(ABC):
    """Update parameters by their gradients; parameters without a gradient do not change."""

    parts: tuple[str, ...]
    """Names of its state per parameter, as in torch."""

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
    running means of gradients and of their squares, and `step`, their number."""

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
        """Set an optimizer's state to copies of these."""
        for name, parameter in optimizer.parameters.items():
            if f"{optimizer.parts[-1]}.{name}" in self.tensors:
                optimizer.state[name] = {
                    part: torch.empty_like(parameter).copy_(tensor) if tensor.ndim else tensor.clone()
                    for part, tensor in ((part, self.tensors[f"{part}.{name}"]) for part in optimizer.parts)
                }

    def take(self, optimizer: Optimizer) -> None:
        """Replace these by copies of an optimizer's state."""
        self.tensors = self.tensors | {
            f"{part}.{name}": optimizer.state[name][part].clone(memory_format=torch.contiguous_format)
            for name in optimizer.parameters
            if name in optimizer.state
            for part in optimizer.parts
        }


Steps = tuple[float, ...]
"""Numbers of steps of each parameter of a silo, in order; fractions if averaged over silos."""


class VectorizedOptimizer:
    """One optimizer for K silos that may be at different steps, equal elementwise to one optimizer per silo.

    Fused kernels run on groups of silos at the same step. They assume that gradients have the memory layout of their
    parameters and ignore strides, but gradients of a linear layer's weights, for instance, are transposed. So
    everything is made contiguous here.
    """

    def __init__(self, optimizer: Optimizer, names: Sequence[str], parameters: Tensors, begun: Tensors) -> None:
        """`parameters` (K, ...) by name, all contiguous; `begun` is the initial state, as in `Moments`."""
        self.optimizer, self.names = optimizer, tuple(names)
        self.parts = [part for part in optimizer.parts if part != "step"]
        if isinstance(optimizer, SGD) and not optimizer.momentum:
            self.parts = []
        self.counts = "step" in optimizer.parts
        self.seen = {name for name in names if f"{optimizer.parts[-1]}.{name}" in begun}
        self.parameters = parameters
        self.counted = {name: begun[f"step.{name}"].dtype for name in self.seen if self.counts}
        """The dtypes of the given numbers of steps."""
        self.memory = {
            f"{part}.{name}": begun[f"{part}.{name}"].to(parameters[name].dtype, copy=True).contiguous()
            for name in self.seen
            for part in self.parts
        }
        silos = len(next(iter(parameters.values()))) if parameters else 0
        columns = [
            [float(step) for step in begun[f"step.{name}"].tolist()]
            if self.counts and name in self.seen
            else [0.0] * silos
            for name in names
        ]
        self.steps: list[Steps] = list(zip(*columns, strict=True)) if columns else [()] * silos

    def order(self, silos: Sequence[int]) -> list[int]:
        """Return the silos, ordered so that silos at the same step are next to each other."""
        return sorted(silos, key=self.steps.__getitem__) if self.counts else list(silos)

    @torch.no_grad()
    def step(
        self, silos: Sequence[int], index: Tensor | None, parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor | None],
    ) -> None:  # fmt: skip
        """Update the parameters (G, ...) of these silos, in the order of `order`, in place. `index` is None for all
        silos. Parameters without a gradient do not change."""
        moved = [name for name in self.names if gradients[name] is not None]
        for name, part in product(moved, self.parts):
            if f"{part}.{name}" not in self.memory:
                self.memory[f"{part}.{name}"] = torch.zeros_like(self.parameters[name])
        memory = {place: self.memory[place] for place in (f"{part}.{name}" for name in moved for part in self.parts)}
        if index is not None:
            memory = {place: tensor.index_select(0, index) for place, tensor in memory.items()}
        grads = {name: gradient.contiguous() for name, gradient in gradients.items() if gradient is not None}
        for begin, end in self._runs(silos):
            whole = end - begin == len(silos)
            here = {name: parameters[name] if whole else parameters[name][begin:end] for name in moved}
            self.optimizer.state = {
                name: {part: memory[f"{part}.{name}"][begin:end] for part in self.parts} for name in moved
            }
            if self.counts:
                for at, name in enumerate(self.names):
                    if name in self.optimizer.state:
                        self.optimizer.state[name]["step"] = torch.tensor(
                            float(self.steps[silos[begin]][at]), device=here[name].device
                        )
            self.optimizer.change(here, grads if whole else {name: grads[name][begin:end] for name in moved})
        self.optimizer.state = {}
        if index is not None:
            for name, tensor in memory.items():
                self.memory[name].index_copy_(0, index, tensor)
        self.seen.update(moved)
        if self.counts:
            self._count(silos, set(moved))

    def _runs(self, silos: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield start and end of each run of silos at the same step."""
        if not self.counts:
            yield 0, len(silos)
            return
        begin = 0
        for _, run in groupby(silos, self.steps.__getitem__):
            end = begin + len(list(run))
            yield begin, end
            begin = end

    def _count(self, silos: Sequence[int], moved: set[str]) -> None:
        after = dict[Steps, Steps]()
        for silo in silos:
            before = self.steps[silo]
            if before not in after:
                after[before] = tuple(step + (name in moved) for name, step in zip(self.names, before, strict=True))
            self.steps[silo] = after[before]

    def remembered(self) -> Tensors:
        """Return its state, (K, ...), by names such as "exp_avg.PARAMETER"."""
        found = {name: tensor for name, tensor in self.memory.items() if name.partition(".")[2] in self.seen}
        if self.counts:
            for at, name in enumerate(self.names):
                if name in self.seen:
                    found[f"step.{name}"] = torch.tensor(
                        [float(steps[at]) for steps in self.steps],
                        dtype=self.counted.get(name, torch.float32),
                        device=self.parameters[name].device,
                    )
        return found
