"""One chunk of silos carried out: stacked where that can be had, else one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core import Data, Payload, SiloId, Site, State, key, seeded
from ...core.aggregation import all_finite
from ...core.devices import deterministic
from ...files.schema.small_files import KeptState
from ...training.stacked.masks import Mask
from ...training.stacked.replay import Ended, StackedWork, Tree
from ...training.stacked.site import NotStackable
from ...training.stacked.steps import StackedData, carried_out
from ..executor import Executor
from ..one_thread import one_thread

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
    """The forms of states, see `StackedPlace.name`, with which the work is carried out stacked, and whether batches of
    different sizes are padded.
    """


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


class StackedPlace:
    """Carries out chunks where an executor is, and remembers what dropout draws in a step of each work."""

    def __init__(self, place: Executor) -> None:
        self.place = place
        self.masks: dict[str, dict[object, list[Mask]]] = {}
        self.has_padded = False
        """Whether batches of different sizes came together when something was stacked last."""
        architectures = dict.fromkeys(id(place.own[silo]) for silo in sorted(place.own))
        self.architecture = {module: number for number, module in enumerate(architectures)}

    def carry_out(self, order: ChunkOrder) -> ChunkDone:
        """Raises SiloError or StateLost as the executor does."""
        done = ChunkDone()
        before = {silo: self.place.state(silo, order.kept.get(silo)) for silo in order.silos}
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
        own = self.architecture.get(id(self.place.own.get(silo)), 0)
        return address + (f" ({', '.join(groups)})" if groups else "") + (f" of model {own}" if own else "")

    def stacked(
        self, t: int, address: str, sent: Payload, silos: Sequence[SiloId], states: Sequence[State], padded: bool
    ) -> Ended:
        """The work at silos of one architecture whose states are of one form. Nothing is kept.

        Raises NotStackable, or whatever comes of a work for which stacking is nothing; so it does where a number is not
        finite, since one silo by itself can say which it is.
        """
        place = self.place
        name, work = place.find_work(t, address)
        masks = self.masks.setdefault(self.name(address, silos[0], states[0]), {})
        with one_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # what is slow is measured
            generators = [torch.Generator().manual_seed(key(place.seed, name, t, silo)) for silo in silos]
            device, site, splits = self._there(silos, t)
            data = StackedData(splits, generators, device, padded)
            counts = torch.tensor([len(y) for y in data.labels], device=device)
            batched: Tree = {"state": moved(stack(states), device), "examples": counts}
            stacked = StackedWork(work, moved(sent, device), site)
            with seeded(place.seed, name, t, silos[0], device=device), deterministic(device):
                ended = carried_out(stacked, batched, data, masks)
            self.has_padded = data.has_padded
        for tree in (ended.payload, ended.state):
            for tensors in tree.values():
                for each, tensor in tensors.items():
                    tensors[each] = tensor = tensor.detach().contiguous().cpu()
                    if not all_finite(tensor):
                        raise NotStackable(f"{each} is not finite at one of the silos")
        return ended

    def _there(self, silos: Sequence[SiloId], t: int) -> tuple[torch.device, Site, list[Data]]:
        """Where silos are trained, the first one's site there, and their training data."""
        place = self.place
        if place.device.type == "cpu":
            return place.device, place.site(silos[0], t), [place.silos[silo].train for silo in silos]
        there = [place.workplace.silo(place.silos[silo]).train for silo in silos]
        return place.device, place.site_there(silos[0], t), there

    def _keep(
        self, order: ChunkOrder, silos: list[SiloId], before: Sequence[State], ended: Ended, done: ChunkDone
    ) -> None:
        done.parts.append(ChunkPart(silos, ended.payload, [int(n) for n in ended.examples.tolist()]))
        if any(before[0].values()) or any(ended.state.values()):
            for k, silo in enumerate(silos):
                done.kept.append(self.place.states.save(silo, order.t, one_of(ended.state, k), order.needed))

    def _one_by_one(self, order: ChunkOrder, silos: Sequence[SiloId], done: ChunkDone) -> None:
        for silo in silos:
            update, kept = self.place.perform(
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


def weighted(part: ChunkPart) -> tuple[Payload, Payload]:
    """The sums over the silos of a part of n_k times its tensors, float64, and the first silo's, which say of which
    type they are, and what integers there are.
    """
    shares = torch.tensor(part.examples, dtype=torch.float64)
    sums: Payload = {}
    for group, tensors in part.payload.items():
        sums[group] = {name: _sum(tensor, shares) for name, tensor in tensors.items() if tensor.is_floating_point()}
    first = part.silos.index(min(part.silos))
    return sums, one_of(part.payload, first)


def _sum(tensor: Tensor, shares: Tensor) -> Tensor:
    # Not a product of matrices, whose order of summation is its library's own.
    return (tensor.double() * shares.view(-1, *[1] * (tensor.ndim - 1))).sum(0)
