"""Wrong labels among those that a silo trains on, made on purpose to see what they do."""

from __future__ import annotations

import numpy as np

from .pools import LabelArray


def mislabelled(y: LabelArray, share: float, classes: int, rng: np.random.Generator) -> LabelArray:
    """The labels with a share of them wrong, rounded to whole labels: each another class, any with the same chance."""
    wrong = rng.choice(len(y), round(share * len(y)), replace=False)
    changed = y.copy()
    changed[wrong] = (y[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return changed
