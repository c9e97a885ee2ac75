"""A bound on how far one silo's update can move a mean, by the norms of earlier rounds, and who was far from the rest.

What is somewhat longer than the bound is scaled down to it, and what is much longer counts as no change, as in Hampel,
The Influence Curve and Its Role in Robust Estimation, Journal of the American Statistical Association, 1974. The bound
is known before a round begins, so that updates are still added up as they come. In the first round it is that of the
first 64 updates by name, which are waited for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

import torch
from torch import Tensor

from ..core import Payload, Round, SiloContext, SiloId, Tensors, Update, key, same_names
from ..core.errors import Diverged

TIMES = 4.0
"""How many times the usual norm an update's may be."""
NOTHING = 4.0
"""How many times the bound an update may be to be scaled down to it; one beyond that counts as no change at all."""
WINDOW = 5
"""Rounds of which the usual norm is: the median of their median norms, or the last of these where that is larger."""
BUFFERED = 64
"""Updates that are waited for in the first round, whose median norm is the usual one there."""
FAR = 4.0
"""How many times as far from the middle as the median silo an update is called far from all others."""
FEWEST = 4
"""Silos in a round below which nobody is called far."""
ROWS, WIDTH = 2, 256
"""Numbers of an update's sketch: random signed sums over its numbers, by which distances are told."""

Medians = dict[str, list[float]]
"""Median norms of the last rounds, by part of an update."""


@dataclass(frozen=True)
class Noted:
    """What is to be said of a silo's update in a round."""

    times_bound: float | None = None
    """Its norm over the bound, where that is above 1; above `NOTHING` it counts as no change, and infinite is one that
    was not finite."""
    times_far: float | None = None
    """Its distance from the middle of all updates over the median silo's, where that is above `FAR`."""


class Admission:
    """The updates of one round: each is handed on as it is, or scaled down to the bound."""

    def __init__(self, step: Round, sent: Payload, buffers: frozenset[str], bounds: Mapping[str, float], scales: bool):
        """`bounds` are the largest norms by part; a part without one gets that of the first updates. Without `scales`
        nothing is scaled down.
        """
        self.origin, self.sent, self.buffers, self.scales = step.origin or same_names, sent, buffers, scales
        self.bounds, self.least = dict(bounds), step.honest_norm(sent)
        self.signs: dict[tuple[str, str, int], Tensor] = {}
        self.norms: dict[SiloId, dict[str, float]] = {}
        self.sketches: dict[SiloId, Tensor] = {}
        self.exceeded: dict[SiloId, float] = {}
        self.burst: set[SiloId] = set()

    @property
    def waits(self) -> bool:
        """Whether the first `BUFFERED` updates by name have to be admitted together, before all others."""
        return self.scales and not self.bounds

    def admit(self, updates: Mapping[SiloId, Update]) -> dict[SiloId, Update]:
        """Updates as they are to be counted. Those within the bound are the same objects."""
        for silo, update in updates.items():
            self.look(silo, update.payload)
        return {silo: self.scaled(silo, update) for silo, update in updates.items()}

    def look(self, silo: SiloId, payload: Payload) -> None:
        """Measure an update."""
        squares: dict[str, list[float]] = {}
        sketch = torch.zeros(ROWS * WIDTH, dtype=torch.float64)
        for part, name, before, tensor in self._changes(payload):
            change = _minus(tensor, before)
            squares.setdefault(part, []).append(float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2)
            if not part.endswith(STATISTICS):
                sketch += self._sketch(part, name, change)
        # fsum does not depend on the order of tensors, which is another where they came over a network.
        self.norms[silo] = {part: math.sqrt(math.fsum(each)) for part, each in squares.items()}
        self.sketches[silo] = sketch

    def scaled(self, silo: SiloId, update: Update) -> Update:
        """An update that was looked at, no longer than the bound in any part."""
        if not self.scales or not self.norms[silo]:
            return update
        self._settle()
        over = {part: _over(norm, self.bounds.get(part)) for part, norm in self.norms[silo].items()}
        worst = max(over.values())
        if worst <= 1:
            return update
        self.exceeded[silo] = worst
        if worst > NOTHING and self._has_burst(silo, update.payload):
            self.burst.add(silo)
        factors = {part: 0.0 if worst > NOTHING else 1 / max(1.0, each) for part, each in over.items()}
        payload = {group: dict(tensors) for group, tensors in update.payload.items()}
        for part, name, before, tensor in self._changes(update.payload):
            if (factor := factors[part]) < 1:
                group = part.removesuffix(STATISTICS)
                moved = factor * (tensor.double() - before.double()) if factor else 0.0
                payload[group][name] = (before.double() + moved).to(tensor.dtype)
        return Update(payload, update.examples)

    def _settle(self) -> None:
        """In a first round, take the bound from the first updates by name."""
        if self.bounds:
            return
        first = [self.norms[silo] for silo in sorted(self.norms)[:BUFFERED]]
        self.bounds = {part: bound for part, norm in _medians(first).items() if (bound := TIMES * norm) > 0}
        self.bounds = {part: max(bound, self.least) for part, bound in self.bounds.items()} or {"": math.inf}

    def _has_burst(self, silo: SiloId, payload: Payload) -> bool:
        """Whether an update is not finite, or far longer than what was sent is itself: no training that learns does
        that, while silos of very different size may well exceed each other's norms."""
        squares: dict[str, list[float]] = {}
        for part, _, before, _ in self._changes(payload):
            squares.setdefault(part, []).append(float(torch.linalg.vector_norm(before.double())) ** 2)
        own = {part: math.sqrt(math.fsum(each)) for part, each in squares.items()}
        norms = self.norms[silo].items()
        return any(not math.isfinite(norm) or 0 < TIMES * NOTHING * own[part] < norm for part, norm in norms)

    def check_burst(self, step: Round) -> None:
        """Raises Diverged where that is so of more than half of the silos, whose updates count as no change."""
        if 2 * len(self.burst) > len(self.norms):
            many = f"updates of {len(self.burst)} of {len(self.norms)} silos are more than {TIMES * NOTHING:.0f} times"
            raise Diverged(
                f"{step.name!r}: {many} as long as is usual, and as what they change: training diverged; try a lower "
                "training.lr"
            )

    def medians(self) -> dict[str, float]:
        """The median norm of each part over the round's updates, of those that moved at all."""
        return {part: norm for part, norm in _medians(list(self.norms.values())).items() if norm > 0}

    def noted(self) -> dict[SiloId, Noted]:
        """What is to be said of the round's silos, by name."""
        far = _far(self.sketches)
        silos = sorted({*self.exceeded, *far})
        return {silo: Noted(self.exceeded.get(silo), far.get(silo)) for silo in silos}

    def _sketch(self, part: str, name: str, change: Tensor) -> Tensor:
        """(ROWS * WIDTH,) signed sums: of two changes, the distance of these is in the mean that of the changes."""
        count = math.ceil(len(change) / WIDTH)
        padded = torch.nn.functional.pad(change, (0, count * WIDTH - len(change))).view(count, WIDTH)
        if (part, name, count) not in self.signs:
            generator = torch.Generator().manual_seed(key("sketch", part, name))
            self.signs[part, name, count] = torch.randint(0, 2, (ROWS, count), generator=generator) * 2 - 1
        return (self.signs[part, name, count].to(change.dtype) @ padded).double().reshape(-1) / math.sqrt(ROWS)

    def _changes(self, payload: Payload) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """The part, the name, what was sent and what came, of each floating-point tensor that can be compared."""
        known = self.origin(self.sent, payload)
        for group, tensors in payload.items():
            befores: Tensors = known.get(group, {})
            for name, tensor in tensors.items():
                before = befores.get(name)
                if before is not None and tensor.is_floating_point() and before.shape == tensor.shape:
                    yield group + STATISTICS * (name in self.buffers), name, before, tensor


STATISTICS = " statistics"
"""What is added to the name of a group for the part of it that are buffers: they are in units of their own."""


@dataclass
class NormBound:
    """The norms of earlier rounds, and what they bound."""

    scales: bool = True
    kept: dict[str, Medians] = field(default_factory=dict)
    """By the address of a work: a run's checkpoint has it, so that a resumed run has the same bounds."""

    def admission(self, step: Round, sent: Payload, context: SiloContext) -> Admission | None:
        """What looks at the updates of a round; None where there is nothing to be looked at."""
        if not step.trains and step.origin is None:
            return None
        buffers = frozenset(chain.from_iterable(_ends(name) for name, _ in context.module.named_buffers()))
        # The last round too, so that norms can grow, and the others, so that one round of liars lasts for no more.
        usual = {p: max(median(found), found[-1]) for p, found in self.kept.get(step.address, {}).items() if found}
        least = step.honest_norm(sent)
        bounds = {part: max(TIMES * norm, least) for part, norm in usual.items()}
        return Admission(step, sent, buffers, bounds, self.scales)

    def remember(self, step: Round, admission: Admission) -> None:
        """Have a round that was carried out count among the earlier ones. Raises Diverged where training did."""
        admission.check_burst(step)
        known = self.kept.get(step.address, {})
        found = admission.medians()
        now = {part: [*known.get(part, []), found[part]][-WINDOW:] if part in found else known[part]
               for part in {**known, **found}}  # fmt: skip
        self.kept = {**self.kept, step.address: now}


def _ends(name: str) -> Iterator[str]:
    """A tensor's name, and those that it has in parts of the module."""
    while name:
        yield name
        name = name.partition(".")[2]


def _over(norm: float, bound: float | None) -> float:
    """How many times the bound a norm is; infinite for one that is not finite."""
    if not math.isfinite(norm):
        return math.inf
    return 0.0 if bound is None else norm / bound


def _medians(norms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    parts = dict.fromkeys(part for each in norms for part in each)
    found = {part: [each[part] for each in norms if part in each and math.isfinite(each[part])] for part in parts}
    return {part: median(values) for part, values in found.items() if values}


def _minus(tensor: Tensor, before: Tensor) -> Tensor:
    """The change as a flat tensor, in float32 or float64."""
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor, before = tensor.float(), before.float()
    return (tensor - before).reshape(-1)


def _far(sketches: Mapping[SiloId, Tensor]) -> dict[SiloId, float]:
    """The silos that are much further from the middle of all than the median silo, and how many times as far."""
    names = sorted(silo for silo, sketch in sketches.items() if bool(sketch.isfinite().all()))
    far = {silo: math.inf for silo in sketches if silo not in names}
    if len(names) < FEWEST:
        return far
    stacked = torch.stack([sketches[silo] for silo in names])
    away = torch.linalg.vector_norm(stacked - stacked.median(0).values, dim=1)
    usual = float(away.median())
    return far | {silo: float(each) / usual for silo, each in zip(names, away, strict=True) if each > FAR * usual > 0}
