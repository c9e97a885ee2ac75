"""The loop over batches for K silos: each step is one batched call for all silos whose next batch has the same size.

Dropout masks are drawn before the step by each silo's own generator, as `F.dropout` would draw them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode

from ..core import Data, Tensors
from ..core.devices import brought
from .modules import learning, to_train
from .vectorized_optimizer import VectorizedOptimizer
from .vectorized_task import Ended, FitCall, NotVectorizable, Trained, Tree, VectorizedTask, chosen

IGNORED = -100
"""A label that `torch.nn.functional.cross_entropy` ignores."""


@dataclass
class VectorizedData:
    """The training data of K silos, one after the other, and their generators."""

    silos: Sequence[Data]
    generators: Sequence[torch.Generator]
    device: torch.device
    padded: bool = False
    """Whether batches of different sizes are combined; see `batches`."""
    has_padded: bool = field(default=False, init=False)
    """Whether any batches were combined."""
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)
    labels: list[Tensor] = field(init=False)
    """Labels of each silo, (n_k,)."""
    begins: list[int] = field(init=False)

    def __post_init__(self) -> None:
        xs = [silo.x for silo in self.silos]
        if any(type(silo).batch is not Data.batch for silo in self.silos):
            raise NotVectorizable("training data are randomly augmented")
        if not all(isinstance(x, Tensor) for x in xs):
            raise NotVectorizable("inputs are read on access")
        self.labels = [silo.y for silo in self.silos]
        self.x, self.y = torch.cat(xs), torch.cat(self.labels)
        counts = [len(y) for y in self.labels]
        self.begins = [sum(counts[:k]) for k in range(len(counts))]

    def batches(self, silos: Sequence[int], index: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the inputs (G, B, ...) and labels (G, B) of a step, from G index batches. Smaller batches are padded
        with the silo's first example and the label `IGNORED`, which a mean cross-entropy skips."""
        sizes = torch.tensor([each.numel() for each in index])
        begins = torch.tensor([self.begins[silo] for silo in silos])[:, None]
        if int(sizes.min()) == int(sizes.max()):
            at = brought(torch.stack(list(index)) + begins, self.device)
            return self.x[at], self.y[at]
        self.has_padded = True
        at = pad_sequence(list(index), batch_first=True) + begins
        beyond = torch.arange(at.shape[1])[None] >= sizes[:, None]
        at = brought(at, self.device)
        return self.x[at], self.y[at].masked_fill(brought(beyond, self.device), IGNORED)


class Begun(NamedTuple):
    """The start of a call of fit."""

    call: FitCall
    trained: Tensors
    """The trained parameters, (K, ...)."""
    buffers: Tensors
    optimizer: VectorizedOptimizer


class VectorizedFit:
    """Training of K silos in the middle of a task."""

    def __init__(
        self, task: VectorizedTask, silos: Tree, data: VectorizedData, masks: dict[object, list[Mask]]
    ) -> None:
        """`silos` has "state" and "examples"; `masks` has earlier dropout masks, by number of the call and size."""
        self.task, self.silos, self.data, self.masks = task, silos, data, masks
        self.count = len(data.silos)
        self.number = len(task.trained)

    def begin(self) -> Begun | Ended:
        """Return the start of the task's next call of fit, or the task's result if there is none."""
        calls = list[FitCall]()

        def where(call: FitCall, silo: Tree) -> Tree:
            calls.append(call)
            module = call.context.module
            names = [name for name in learning(module) if name not in call.frozen]
            every = dict(module.named_parameters())
            found = {"parameters": {name: every[name] for name in names}, "buffers": dict(module.named_buffers())}
            remembered = call.remembered or {}
            kept = {f"{part}.{name}" for part in call.training.remembered for name in names} & remembered.keys()
            return found | {"remembered": {name: remembered[name] for name in kept}}

        found = self.task.replay(where, self.silos)
        if isinstance(found, Ended):
            return found
        call = calls[0]
        if call.training.precision != "float32":
            raise NotVectorizable(f"training.precision = {call.training.precision!r}")
        trained = {name: _own(t) for name, t in found["parameters"].items()}
        buffers = {name: _own(t) for name, t in found["buffers"].items()}
        optimizer = call.training.make_optimizer({}, call.training.rate(self.task.context))
        optimizer.undecayed = call.undecayed
        return Begun(
            call, trained, buffers, VectorizedOptimizer(optimizer, list(trained), trained, found["remembered"])
        )

    def train(self, begun: Begun) -> Trained:
        """Run all steps of a call of fit."""
        training = begun.call.training
        turns = [
            training.batches(len(y), generator=generator)
            for y, generator in zip(self.data.labels, self.data.generators, strict=True)
        ]
        steps = [0] * self.count
        for group, batch in _groups(turns, self.data.padded):
            order = begun.optimizer.order(group)
            self.step(begun, order, [batch[silo] for silo in order])
            for silo in order:
                steps[silo] += 1
        remembered = begun.optimizer.remembered() if begun.call.remembered is not None else {}
        return Trained(begun.trained | begun.buffers, torch.tensor(steps, device=self.data.device), remembered)

    def step(self, begun: Begun, group: Sequence[int], batches: Sequence[Tensor]) -> None:
        """Run one step of a group of silos, with one index batch per silo."""
        device = self.data.device
        index = None if list(group) == list(range(self.count)) else torch.tensor(group, device=device)
        now, buffers, silos = begun.trained, begun.buffers, self.silos
        if index is not None:
            now, buffers, silos = chosen(now, index), chosen(buffers, index), chosen(silos, index)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in now.items()}
        x, y = self.data.batches(group, batches)
        of_step = silos | {"parameters": leaves, "buffers": buffers, "x": x, "y": y}
        generators = [self.data.generators[silo] for silo in group]
        known = self._masks(of_step, index)
        masks = drawn(known, generators, [each.numel() for each in batches], device)
        losses = self._losses(of_step, index, known, masks)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        gradients: dict[str, Tensor | None] = dict(zip(leaves, found, strict=True))
        with torch.no_grad():
            if begun.call.correct is not None:
                gradients = self._corrected(silos, index, leaves, buffers, gradients)
            if begun.call.training.clip_norm is not None:
                _clip(gradients, begun.call.training.clip_norm)
        begun.optimizer.step(group, index, now, gradients)
        if index is not None:
            for whole, part in ((begun.trained, now), (begun.buffers, buffers)):
                for name, tensor in part.items():
                    whole[name].index_copy_(0, index, tensor)

    def _masks(self, silos: Tree, index: Tensor | None) -> list[Mask]:
        """Return the dropout masks of a silo's step, which are determined once, without changing buffers."""
        place = self.number, silos["x"].shape[1:], silos["x"].dtype
        if place not in self.masks:
            found = list[list[Mask]]()

            def look(call: FitCall, silo: Tree) -> Tree:
                masking = Masking(None)
                self._loss(call, silo, masking)
                found.append(masking.found)
                return {}

            buffers = {name: tensor.clone() for name, tensor in silos["buffers"].items()}
            with torch.no_grad():
                self.task.replay(look, silos | {"buffers": buffers}, index)
            self.masks[place] = found[0]
        return self.masks[place]

    def _losses(self, silos: Tree, index: Tensor | None, known: list[Mask], masks: list[Tensor]) -> Tensor:
        def loss(call: FitCall, silo: Tree) -> Tree:
            masking = Masking(silo["masks"], known)
            made = self._loss(call, silo, masking)
            masking.check()
            return {"loss": made}

        found = self.task.replay(loss, silos | {"masks": masks}, index)
        if isinstance(found, Ended):
            raise NotVectorizable("it calls fit in one pass and not in another")
        losses: Tensor = found["loss"]
        return losses

    def _loss(self, call: FitCall, silo: Tree, masking: Masking) -> Tensor:
        module = call.context.module
        self.task.swaps.put(module, silo["parameters"] | silo["buffers"])
        to_train(module)
        with masking:
            return call.loss(silo["x"], silo["y"])

    def _corrected(
        self, silos: Tree, index: Tensor | None, leaves: Tensors, buffers: Tensors, gradients: dict[str, Tensor | None]
    ) -> dict[str, Tensor | None]:
        there = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        now = {name: tensor.detach() for name, tensor in leaves.items()}

        def correct(call: FitCall, silo: Tree) -> Tree:
            self.task.swaps.put(call.context.module, silo["parameters"] | silo["buffers"])
            function = call.correct or (lambda name, gradient: gradient)
            return {name: function(name, gradient) for name, gradient in silo["gradients"].items()}

        found = self.task.replay(correct, silos | {"parameters": now, "buffers": buffers, "gradients": there}, index)
        return gradients if isinstance(found, Ended) else gradients | found


def _groups(turns: Sequence[Iterator[Tensor]], padded: bool) -> Iterator[tuple[list[int], dict[int, Tensor]]]:
    """Yield silos that take a step together, and their index batches. If `padded`, these are all silos with a batch
    left, otherwise the silos whose next batch has the most frequent size."""
    batch = {silo: each for silo, turn in enumerate(turns) if (each := next(turn, None)) is not None}
    while batch:
        sizes = Counter(map(Tensor.numel, batch.values()))
        size = max(sizes, key=lambda size: (sizes[size], size))
        group = sorted(silo for silo, each in batch.items() if padded or each.numel() == size)
        yield group, batch
        for silo in group:
            after = next(turns[silo], None)
            if after is None:
                del batch[silo]
            else:
                batch[silo] = after


def _clip(gradients: dict[str, Tensor | None], most: float) -> None:
    """Scale each silo's gradient down to an L2 norm of at most `most`, as `torch.nn.utils.clip_grad_norm_` does."""
    there = [gradient for gradient in gradients.values() if gradient is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in there])
    factor = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1)
    for gradient in there:
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))


def _own(tensor: Tensor) -> Tensor:
    """Return a contiguous copy: vmap may return one silo's tensor K times."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def carried_out(task: VectorizedTask, silos: Tree, data: VectorizedData, masks: dict[object, list[Mask]]) -> Ended:
    """Run a task with all its calls of fit. Raises NotVectorizable if there are none."""
    while True:
        fit = VectorizedFit(task, silos, data, masks)
        begun = fit.begin()
        if isinstance(begun, Begun):
            task.trained.append(fit.train(begun))
        elif task.trained:
            return begun
        else:
            raise NotVectorizable("it does not call fit")


class Mask(NamedTuple):
    """One call of dropout in a step."""

    shape: torch.Size
    """Shape of its input at one silo."""
    dtype: torch.dtype
    p: float


class Masking(TorchFunctionMode):
    """Replaces the masks of `F.dropout` by given ones, in the order of the calls; without masks, lists the calls."""

    def __init__(self, masks: Sequence[Tensor] | None, known: Sequence[Mask] = ()) -> None:
        """`known` are the calls for which the masks were drawn."""
        super().__init__()
        self.masks, self.known, self.found = masks, known, list[Mask]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.dropout:
            return self._dropped(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def _dropped(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0 or p == 1 or inplace or not x.numel():
            return F.dropout(x, p, training, inplace)
        mask = Mask(x.shape, x.dtype, p)
        self.found.append(mask)
        if self.masks is None:
            return x
        if len(self.found) > len(self.known) or self.known[len(self.found) - 1] != mask:
            raise NotVectorizable("it drops different units than before")
        return x * self.masks[len(self.found) - 1]

    def check(self) -> None:
        """Raise NotVectorizable unless all masks were used."""
        if len(self.found) != len(self.known):
            raise NotVectorizable("it drops different units than before")


def drawn(
    masks: Sequence[Mask], generators: Sequence[torch.Generator], sizes: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Return a (K, *shape) tensor for each mask; each silo's part is drawn by its generator on the CPU.

    On another device, all are drawn at once by the device's generator. `sizes` are the sizes of the silos' batches; the
    largest has the shape of the mask, and smaller ones draw less. Raises NotVectorizable if examples are not along the
    first axis.
    """
    if device.type != "cpu":
        whole = [torch.empty(len(sizes), *mask.shape, dtype=mask.dtype, device=device) for mask in masks]
        return [each.bernoulli_(1 - mask.p).div_(1 - mask.p) for mask, each in zip(masks, whole, strict=True)]
    most, even = max(sizes), min(sizes) == max(sizes)
    if not even and any(not mask.shape or mask.shape[0] % most for mask in masks):
        raise NotVectorizable("its dropout masks do not have examples along the first axis")
    make = torch.empty if even else torch.zeros
    found = [make(len(generators), *mask.shape, dtype=mask.dtype) for mask in masks]
    parts = [each.unbind() for each in found]
    for silo, (generator, size) in enumerate(zip(generators, sizes, strict=True)):
        for mask, part in zip(masks, parts, strict=True):
            of_silo = part[silo] if size == most else part[silo][: mask.shape[0] // most * size]
            of_silo.bernoulli_(1 - mask.p, generator=generator)
    for mask, each in zip(masks, found, strict=True):
        each.div_(1 - mask.p)
    return found
