"""Runs a client task at one chunk of silos: as one batched call if it can be stacked, else one silo after the other."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..core import Data, Payload, SiloContext, SiloId, State, key, seeded
from ..core.aggregation import all_finite
from ..core.devices import deterministic
from ..files.schema.progress import KeptState
from ..training.vectorized_fit import Mask, StackedData, carried_out
from ..training.vectorized_replay import Ended, NotStackable, StackedWork, Tree
from .executor import Executor
from .placement import one_thread

Form = tuple[tuple[str, str, torch.Size, torch.dtype], ...]
"""Group, name, shape and type of every tensor of a state."""


@dataclass(frozen=True)
class ChunkOrder:
    """A work at some silos in round t."""

    t: int
    address: str
    sent: Payload
    silos: Sequence[SiloId]
    kept: Mapping[SiloId, KeptState]
    """Which state each silo has kept, where it has any."""
    needed: Collection[int]
    """The rounds whose states stay on the disk."""
    stacked: Mapping[str, bool]
    """The names, see `BatchedExecutor.name`, with which the task is stacked, and whether batches are padded."""


@dataclass
class ChunkPart:
    """What a work has come to at silos whose updates have one form: tensors (K, ...)."""

    silos: list[SiloId]
    payload: Payload
    examples: list[int]


@dataclass
class ChunkDone:
    """What a chunk has come to."""

    parts: list[ChunkPart] = field(default_factory=list)
    kept: list[KeptState] = field(default_factory=list)
    one_by_one: dict[str, str] = field(default_factory=dict)
    """Why silos were carried out one after the other although they were to be stacked, by `name`."""


class BatchedExecutor:
    """Runs chunks of silos on an executor's data and model, and remembers what dropout draws in a step of each task."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.masks: dict[str, dict[object, list[Mask]]] = {}
        self.has_padded = False
        """Whether batches of different sizes came together when something was stacked last."""
        architectures = dict.fromkeys(id(executor.own[silo]) for silo in sorted(executor.own))
        self.architecture = {module: number for number, module in enumerate(architectures)}

    def carry_out(self, order: ChunkOrder) -> ChunkDone:
        """Raises SiloError or StateLost as the executor does."""
        done = ChunkDone()
        before = {silo: self.executor.state(silo, order.kept.get(silo)) for silo in order.silos}
        forms: dict[Form, list[SiloId]] = {}
        for silo in order.silos:
            forms.setdefault(form(before[silo]), []).append(silo)
        for silos in forms.values():
            states = [before[silo] for silo in silos]
            if len(silos) < 2 or self.name(order.address, silos[0], states[0]) not in order.stacked:
                self._one_by_one(order, silos, done)
                continue
            try:
                padded = order.stacked[self.name(order.address, silos[0], states[0])]
                ended = self.stacked(order.t, order.address, order.sent, silos, states, padded)
            except Exception as error:
                self.masks.clear()  # what is known of dropout may be of the past
                done.one_by_one[self.name(order.address, silos[0], states[0])] = why(error)
                self._one_by_one(order, silos, done)
            else:
                self._keep(order, silos, states, ended, done)
        return done

    def name(self, address: str, silo: SiloId, state: State) -> str:
        """What decides whether a work is stacked: its address, which groups a silo keeps, and its own architecture."""
        groups = sorted(group for group, tensors in state.items() if tensors)
        own = self.architecture.get(id(self.executor.own.get(silo)), 0)
        return address + (f" ({', '.join(groups)})" if groups else "") + (f" of model {own}" if own else "")

    def stacked(
        self, t: int, address: str, sent: Payload, silos: Sequence[SiloId], states: Sequence[State], padded: bool
    ) -> Ended:
        """The work at silos of one architecture whose states are of one form. Nothing is kept.

        Raises NotStackable, or whatever comes of a work for which stacking is nothing; so it does where a number is not
        finite, since one silo by itself can say which it is.
        """
        executor = self.executor
        name, task = executor.find_work(t, address)
        masks = self.masks.setdefault(self.name(address, silos[0], states[0]), {})
        with one_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # what is slow is measured
            generators = [torch.Generator().manual_seed(key(executor.seed, name, t, silo)) for silo in silos]
            device, context, splits = self._there(silos, t)
            data = StackedData(splits, generators, device, padded)
            counts = torch.tensor([len(y) for y in data.labels], device=device)
            batched: Tree = {"state": moved(stack(states), device), "examples": counts}
            stacked = StackedWork(task, moved(sent, device), context)
            with seeded(executor.seed, name, t, silos[0], device=device), deterministic(device):
                ended = carried_out(stacked, batched, data, masks)
            self.has_padded = data.has_padded
        for tree in (ended.payload, ended.state):
            for tensors in tree.values():
                for each, tensor in tensors.items():
                    tensors[each] = tensor = tensor.detach().contiguous().cpu()
                    if not all_finite(tensor):
                        raise NotStackable(f"{each} is not finite at one of the silos")
        return ended

    def _there(self, silos: Sequence[SiloId], t: int) -> tuple[torch.device, SiloContext, list[Data]]:
        """Where silos are trained, the first one's site there, and their training data."""
        executor, data = self.executor, [self.executor.silos[silo] for silo in silos]
        if executor.device.type == "cpu":
            return executor.device, executor.context(silos[0], t), [silo.train for silo in data]
        on_device = [executor.workplace.silo(silo).train for silo in data]
        return executor.device, executor.site_there(silos[0], t), on_device

    def _keep(
        self, order: ChunkOrder, silos: list[SiloId], before: Sequence[State], ended: Ended, done: ChunkDone
    ) -> None:
        done.parts.append(ChunkPart(silos, ended.payload, [int(n) for n in ended.examples.tolist()]))
        if any(before[0].values()) or any(ended.state.values()):
            for k, silo in enumerate(silos):
                done.kept.append(self.executor.states.save(silo, order.t, one_of(ended.state, k), order.needed))

    def _one_by_one(self, order: ChunkOrder, silos: Sequence[SiloId], done: ChunkDone) -> None:
        for silo in silos:
            update, kept = self.executor.perform(
                order.t, order.address, order.sent, silo, order.kept.get(silo), order.needed
            )
            if kept is not None and kept != order.kept.get(silo):
                done.kept.append(kept)
            done.parts.append(ChunkPart([silo], stack([update.payload]), [update.examples]))


def stack(states: Sequence[Payload]) -> Payload:
    """Payloads of one form as one of tensors (K, ...)."""
    return {
        group: {name: torch.stack([state[group][name] for state in states]) for name in tensors}
        for group, tensors in states[0].items()
    }


def moved(payload: Payload, device: torch.device) -> Payload:
    """A payload's tensors on a device, those that are there already as they are."""
    return {group: {name: t.to(device) for name, t in tensors.items()} for group, tensors in payload.items()}


def one_of(payload: Payload, k: int) -> Payload:
    """The k-th of the silos' payloads."""
    return {group: {name: tensor[k] for name, tensor in tensors.items()} for group, tensors in payload.items()}


def form(state: State) -> Form:
    """What states that are stacked have in common, in order: a file's tensors come in any."""
    return tuple(
        (group, name, tensor.shape, tensor.dtype)
        for group, named in sorted(state.items())
        for name, tensor in sorted(named.items())
    )


KNOWN = {
    "random operation": "it draws random numbers beside batches and dropout",
    "data-dependent control flow": "what it does depends on a silo's numbers",
    ".item()": "it reads a silo's numbers",
    "setup_context": "it has a torch.autograd.Function without a rule for vmap",
    "requires_grad_()": "it takes gradients of its own",
}


def why(error: Exception) -> str:
    """Why a work is not stacked, in half a sentence."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if isinstance(error, NotStackable):
        return text
    return next((told for known, told in KNOWN.items() if known in str(error)), f"{type(error).__name__}: {text[:200]}")
