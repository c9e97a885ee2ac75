"""One optimizer for the parameters of many silos at once."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product

import torch
from torch import Tensor

from ..core import Tensors
from .optimizers import SGD, Optimizer

Steps = tuple[float, ...]
"""Numbers of steps of each parameter of a silo, in order; fractions if averaged over silos."""


class VectorizedOptimizer:
    """One optimizer for K silos that may be at different steps, with the same results as one optimizer per silo.

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
        """Return the optimizer's state, (K, ...), by names such as "exp_avg.PARAMETER"."""
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
