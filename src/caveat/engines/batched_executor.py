"""Runs a client task at a chunk of silos, as one batched call if possible, or else silo by silo."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..core import Data, Payload, SiloContext, SiloId, State, key, seeded
from ..core.aggregation import all_finite
from ..core.devices import brought_all, deterministic
from ..files.schema import KeptState
from ..training.vectorized_fit import Mask, VectorizedData, carried_out
from ..training.vectorized_task import Ended, NotVectorizable, Tree, VectorizedTask
from .executor import Executor
from .silos_on_device import one_thread

Form = tuple[tuple[str, str, torch.Size, torch.dtype], ...]
"""Group, name, shape and type of every tensor of a state."""


@dataclass(frozen=True)
class ChunkOrder:
    """A request to run a task at some silos in round t."""

    t: int
    address: str
    sent: Payload
    silos: Sequence[SiloId]
    kept: Mapping[SiloId, KeptState]
    """The stored state of each silo, if any."""
    needed: Collection[int]
    """Rounds whose states stay on disk."""
    vectorized: Mapping[str, bool]
    """The names (see `BatchedExecutor.name`) of batched tasks, and whether their batches are padded."""


@dataclass
class ChunkPart:
    """Results of a task at silos whose updates have one form: tensors (K, ...)."""

    silos: list[SiloId]
    payload: Payload
    examples: list[int]


@dataclass
class ChunkDone:
    """Results of a chunk."""

    parts: list[ChunkPart] = field(default_factory=list)
    kept: list[KeptState] = field(default_factory=list)
    one_by_one: dict[str, str] = field(default_factory=dict)
    """The reasons why silos were run one by one although their task should be batched, by `name` of the task."""


class BatchedExecutor:
    """Runs chunks of silos with an executor's data and model, and stores the dropout masks of each task."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.masks: dict[str, dict[object, list[Mask]]] = {}
        self.has_padded = False
        """Whether the last batched task had batches of different sizes."""
        architectures = dict.fromkeys(id(executor.own[silo]) for silo in sorted(executor.own))
        self.architecture = {module: number for number, module in enumerate(architectures)}

    def carry_out(self, order: ChunkOrder) -> ChunkDone:
        """Run a chunk. Raises SiloError or StateLost as the executor does."""
        done = ChunkDone()
        before = {silo: self.executor.state(silo, order.kept.get(silo)) for silo in order.silos}
        forms: dict[Form, list[SiloId]] = {}
        for silo in order.silos:
            forms.setdefault(form(before[silo]), []).append(silo)
        for silos in forms.values():
            states = [before[silo] for silo in silos]
            if len(silos) < 2 or self.name(order.address, silos[0], states[0]) not in order.vectorized:
                self._one_by_one(order, silos, done)
                continue
            try:
                padded = order.vectorized[self.name(order.address, silos[0], states[0])]
                ended = self.vectorized(order.t, order.address, order.sent, silos, states, padded)
            except Exception as error:
                self.masks.clear()  # stored dropout masks may be outdated
                done.one_by_one[self.name(order.address, silos[0], states[0])] = why(error)
                self._one_by_one(order, silos, done)
            else:
                self._keep(order, silos, states, ended, done)
        return done

    def name(self, address: str, silo: SiloId, state: State) -> str:
        """Return the key for batching a task: its address, the groups of the silo's state, and its architecture."""
        groups = sorted(group for group, tensors in state.items() if tensors)
        own = self.architecture.get(id(self.executor.own.get(silo)), 0)
        return address + (f" ({', '.join(groups)})" if groups else "") + (f" of model {own}" if own else "")

    def vectorized(
        self, t: int, address: str, sent: Payload, silos: Sequence[SiloId], states: Sequence[State], padded: bool
    ) -> Ended:
        """Run the task at silos of one architecture with states of one form; store nothing.

        Raises NotVectorizable, or any error of a task that cannot be batched. Non-finite values also raise, because
        running silo by silo shows which silo has such values.
        """
        executor = self.executor
        name, task = executor.find_task(t, address)
        masks = self.masks.setdefault(self.name(address, silos[0], states[0]), {})
        with one_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # speed is measured elsewhere
            generators = [torch.Generator().manual_seed(key(executor.seed, name, t, silo)) for silo in silos]
            device, context, splits = self._on_device(silos, t)
            data = VectorizedData(splits, generators, device, padded)
            counts = torch.tensor([len(y) for y in data.labels], device=device)
            batched: Tree = {"state": brought_all(stack(states), device), "examples": counts}
            vectorized = VectorizedTask(task, brought_all(sent, device), context)
            with seeded(executor.seed, name, t, silos[0], device=device), deterministic(device):
                ended = carried_out(vectorized, batched, data, masks)
            self.has_padded = data.has_padded
        for tree in (ended.payload, ended.state):
            for tensors in tree.values():
                for each, tensor in tensors.items():
                    tensors[each] = tensor = tensor.detach().contiguous().cpu()
                    if not all_finite(tensor):
                        raise NotVectorizable(f"{each} is not finite at one of the silos")
        return ended

    def _on_device(self, silos: Sequence[SiloId], t: int) -> tuple[torch.device, SiloContext, list[Data]]:
        """Return the device, and on it the first silo's context and the silos' training data."""
        executor, data = self.executor, [self.executor.silos[silo] for silo in silos]
        if executor.device.type == "cpu":
            return executor.device, executor.context(silos[0], t), [silo.train for silo in data]
        on_device = [executor.workplace.silo(silo).train for silo in data]
        return executor.device, executor.context_on_device(silos[0], t), on_device

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
    """Stack payloads of one form to one payload with tensors (K, ...)."""
    return {
        group: {name: torch.stack([state[group][name] for state in states]) for name in tensors}
        for group, tensors in states[0].items()
    }


def one_of(payload: Payload, k: int) -> Payload:
    """Return the k-th silo's payload."""
    return {group: {name: tensor[k] for name, tensor in tensors.items()} for group, tensors in payload.items()}


def form(state: State) -> Form:
    """Return group, name, shape and type of all tensors, sorted, because files have them in any order."""
    return tuple(
        (group, name, tensor.shape, tensor.dtype)
        for group, named in sorted(state.items())
        for name, tensor in sorted(named.items())
    )


KNOWN = {
    "random operation": "it draws random numbers other than batches and dropout",
    "data-dependent control flow": "its control flow depends on a silo's values",
    ".item()": "it reads a silo's values",
    "setup_context": "it has a torch.autograd.Function without vmap support",
    "requires_grad_()": "it computes gradients itself",
}


def why(error: Exception) -> str:
    """Return why a task is not batched, as a phrase."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if isinstance(error, NotVectorizable):
        return text
    return next((text for known, text in KNOWN.items() if known in str(error)), f"{type(error).__name__}: {text[:200]}")
