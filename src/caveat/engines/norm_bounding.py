"""Norm bounding: limits how far one silo's update can move a mean, based on the norms of earlier rounds.

Updates slightly above the bound are scaled down to it, and updates far above it count as no change, as in Hampel, The
Influence Curve and Its Role in Robust Estimation, Journal of the American Statistical Association, 1974. The bound is
known before a round begins, so updates can be summed on arrival. In the first round, it is computed from the first 64
updates by name, for which the others wait. Updates far from all others are reported.
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
"""The bound as a multiple of the usual norm."""
NOTHING = 4.0
"""Multiple of the bound up to which updates are scaled down; updates beyond it count as no change."""
WINDOW = 5
"""Number of rounds for the usual norm: the median of their median norms, or the last of these if it is larger."""
BUFFERED = 64
"""Number of updates whose median norm is the usual one in the first round."""
FAR = 4.0
"""Distance from the center, as a multiple of the median silo's, beyond which an update is reported as far."""
FEWEST = 4
"""Minimum number of silos in a round for reporting distant updates."""
ROWS, WIDTH = 2, 256
"""Size of an update's sketch: random signed sums over its numbers, which approximate distances."""

Medians = dict[str, list[float]]
"""Median norms of recent rounds, by part of an update."""


@dataclass(frozen=True)
class Noted:
    """A report about a silo's update in a round."""

    times_bound: float | None = None
    """The update's norm divided by the bound, if above 1. Above `NOTHING`, the update counts as no change; infinite for
    an update that is not finite."""
    times_far: float | None = None
    """The update's distance from the center of all updates divided by the median silo's, if above `FAR`."""


class Admission:
    """Admits the updates of one round, scaled down to the bound if necessary."""

    def __init__(self, step: Round, sent: Payload, buffers: frozenset[str], bounds: Mapping[str, float], scales: bool):
        """`bounds` are the maximum norms by part; parts without one get a bound from the first updates. Without
        `scales`, updates are only measured."""
        self.origin, self.sent, self.buffers, self.scales = step.origin or same_names, sent, buffers, scales
        self.bounds, self.least = dict(bounds), step.honest_norm(sent)
        self.signs: dict[tuple[str, str, int], Tensor] = {}
        self.norms: dict[SiloId, dict[str, float]] = {}
        self.sketches: dict[SiloId, Tensor] = {}
        self.exceeded: dict[SiloId, float] = {}
        self.burst: set[SiloId] = set()

    @property
    def waits(self) -> bool:
        """Whether the first `BUFFERED` updates by name must be admitted together, before all others."""
        return self.scales and not self.bounds

    def admit(self, updates: Mapping[SiloId, Update]) -> dict[SiloId, Update]:
        """Return the updates to aggregate. Updates within the bound are the same objects."""
        for silo, update in updates.items():
            self.look(silo, update.payload)
        return {silo: self.scaled(silo, update) for silo, update in updates.items()}

    def look(self, silo: SiloId, payload: Payload) -> None:
        """Measure an update."""
        squares: dict[str, list[float]] = {}
        sketch = torch.zeros(ROWS * WIDTH, dtype=torch.float64)
        for part, name, before, tensor in self._changes(payload):
            if tensor.dtype not in (torch.float32, torch.float64):
                tensor, before = tensor.float(), before.float()
            change = (tensor - before).reshape(-1)
            squares.setdefault(part, []).append(float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2)
            if not part.endswith(STATISTICS):
                sketch += self._sketch(part, name, change)
        # fsum does not depend on the order of tensors, which differs if they were sent over a network.
        self.norms[silo] = {part: math.sqrt(math.fsum(each)) for part, each in squares.items()}
        self.sketches[silo] = sketch

    def scaled(self, silo: SiloId, update: Update) -> Update:
        """Return a measured update, scaled down to the bound in every part."""
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
        """Set the bound from the first updates by name, in a first round."""
        if self.bounds:
            return
        first = [self.norms[silo] for silo in sorted(self.norms)[:BUFFERED]]
        self.bounds = {part: bound for part, norm in _medians(first).items() if (bound := TIMES * norm) > 0}
        self.bounds = {part: max(bound, self.least) for part, bound in self.bounds.items()} or {"": math.inf}

    def _has_burst(self, silo: SiloId, payload: Payload) -> bool:
        """Return whether an update is not finite, or has a far larger norm than the model. This never happens in
        successful training, while silos of very different size may exceed each other's norms."""
        squares: dict[str, list[float]] = {}
        for part, _, before, _ in self._changes(payload):
            squares.setdefault(part, []).append(float(torch.linalg.vector_norm(before.double())) ** 2)
        own = {part: math.sqrt(math.fsum(each)) for part, each in squares.items()}
        norms = self.norms[silo].items()
        return any(not math.isfinite(norm) or 0 < TIMES * NOTHING * own[part] < norm for part, norm in norms)

    def check_burst(self, step: Round) -> None:
        """Raise Diverged if more than half of the silos have updates with a burst, see `_has_burst`."""
        if 2 * len(self.burst) > len(self.norms):
            raise Diverged(
                f"task {step.name!r} diverged: {len(self.burst)} of {len(self.norms)} silos sent updates with over "
                f"{TIMES * NOTHING:.0f} times the usual norm, and over {TIMES * NOTHING:.0f} times the norm of the "
                "model; lower training.lr"
            )

    def medians(self) -> dict[str, float]:
        """Return the median norm of each part over the round's updates, where positive."""
        return {part: norm for part, norm in _medians(list(self.norms.values())).items() if norm > 0}

    def noted(self) -> dict[SiloId, Noted]:
        """Return the reports about the round's silos, by name."""
        far = _far(self.sketches)
        silos = sorted({*self.exceeded, *far})
        return {silo: Noted(self.exceeded.get(silo), far.get(silo)) for silo in silos}

    def _sketch(self, part: str, name: str, change: Tensor) -> Tensor:
        """Return (ROWS * WIDTH,) signed sums; distances of sketches equal those of changes in expectation."""
        count = math.ceil(len(change) / WIDTH)
        padded = torch.nn.functional.pad(change, (0, count * WIDTH - len(change))).view(count, WIDTH)
        if (part, name, count) not in self.signs:
            generator = torch.Generator().manual_seed(key("sketch", part, name))
            self.signs[part, name, count] = torch.randint(0, 2, (ROWS, count), generator=generator) * 2 - 1
        return (self.signs[part, name, count].to(change.dtype) @ padded).double().reshape(-1) / math.sqrt(ROWS)

    def _changes(self, payload: Payload) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Yield part, name, sent and received tensor for each floating-point tensor that can be compared."""
        known = self.origin(self.sent, payload)
        for group, tensors in payload.items():
            befores: Tensors = known.get(group, {})
            for name, tensor in tensors.items():
                before = befores.get(name)
                if before is not None and tensor.is_floating_point() and before.shape == tensor.shape:
                    yield group + STATISTICS * (name in self.buffers), name, before, tensor


STATISTICS = " statistics"
"""Suffix of a group for its buffers, which are bounded separately because their units differ."""


@dataclass
class NormBound:
    """The norms of earlier rounds, which give the bounds."""

    scales: bool = True
    kept: dict[str, Medians] = field(default_factory=dict)
    """The norms by the address of a task; part of a run's checkpoint, so a resumed run has the same bounds."""

    def admission(self, step: Round, sent: Payload, context: SiloContext) -> Admission | None:
        """Return the admission of a round's updates, or None if they are not checked."""
        if not step.trains and step.origin is None:
            return None
        buffers = frozenset(chain.from_iterable(_ends(name) for name, _ in context.module.named_buffers()))
        # The last round is included so norms can grow, and earlier rounds so one attack has no lasting effect.
        usual = {p: max(median(found), found[-1]) for p, found in self.kept.get(step.address, {}).items() if found}
        least = step.honest_norm(sent)
        bounds = {part: max(TIMES * norm, least) for part, norm in usual.items()}
        return Admission(step, sent, buffers, bounds, self.scales)

    def remember(self, step: Round, admission: Admission) -> None:
        """Add a completed round to the earlier ones. Raises Diverged if training diverged."""
        admission.check_burst(step)
        known = self.kept.get(step.address, {})
        found = admission.medians()
        now = {part: [*known.get(part, []), found[part]][-WINDOW:] if part in found else known[part]
               for part in {**known, **found}}  # fmt: skip
        self.kept = {**self.kept, step.address: now}


def _ends(name: str) -> Iterator[str]:
    """Yield a tensor's name, and its names relative to the module's parts."""
    while name:
        yield name
        name = name.partition(".")[2]


def _over(norm: float, bound: float | None) -> float:
    """Return a norm divided by its bound; infinite if it is not finite."""
    if not math.isfinite(norm):
        return math.inf
    return 0.0 if bound is None else norm / bound


def _medians(norms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    parts = dict.fromkeys(part for each in norms for part in each)
    found = {part: [each[part] for each in norms if part in each and math.isfinite(each[part])] for part in parts}
    return {part: median(values) for part, values in found.items() if values}


def _far(sketches: Mapping[SiloId, Tensor]) -> dict[SiloId, float]:
    """Return the silos much farther from the center than the median silo, with the ratio of distances."""
    names = sorted(silo for silo, sketch in sketches.items() if bool(sketch.isfinite().all()))
    far = {silo: math.inf for silo in sketches if silo not in names}
    if len(names) < FEWEST:
        return far
    stacked = torch.stack([sketches[silo] for silo in names])
    away = torch.linalg.vector_norm(stacked - stacked.median(0).values, dim=1)
    usual = float(away.median())
    return far | {silo: float(each) / usual for silo, each in zip(names, away, strict=True) if each > FAR * usual > 0}
