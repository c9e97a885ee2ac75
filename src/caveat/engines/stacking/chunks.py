"""Which silos are carried out together: a function of the cohort alone, so that no bit depends on the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ...core import Payload, SiloId
from ...core.tensors import size

MOST = 64
"""Silos of a chunk: beyond that a step takes as long per silo."""
SHARED = 16
"""Silos from which on there are two chunks, for two workers."""
MEMORY = 1 << 28
"""Bytes that the models of a chunk take while they are trained."""
TIMES = 8
"""Numbers in memory for each parameter of a silo in training, those of a step included."""


def chunks(
    cohort: Sequence[SiloId],
    sent: Payload,
    examples: Mapping[SiloId, int] | None,
    kind: Callable[[SiloId], object],
    kept: int = 0,
) -> list[list[SiloId]]:
    """The silos of a cohort in chunks of the same `kind`, the largest silos together and first, where sizes are known.

    Chunks of a kind are of about the same number of silos. `kept` are the bytes that a step of training keeps for each.
    """
    groups: dict[object, list[SiloId]] = {}
    for silo in cohort if examples is None else sorted(cohort, key=lambda silo: (-examples[silo], silo)):
        groups.setdefault(kind(silo), []).append(silo)
    most = max(2, min(MOST, MEMORY // max(TIMES * size(sent) + kept, 1)))
    found = list[list[SiloId]]()
    for silos in groups.values():
        count = max(math.ceil(len(silos) / most), 2 if len(silos) >= SHARED else 1)
        ends = [round(len(silos) * k / count) for k in range(count + 1)]
        found += [silos[begin:end] for begin, end in pairwise(ends)]
    return found
