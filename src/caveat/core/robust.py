"""Robust aggregation: rules on which a few Byzantine silos have little influence.

Coordinate median and trimmed mean: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018. Geometric median: Pillutla, Kakade & Harchaoui, Robust Aggregation for Federated Learning, IEEE
Transactions on Signal Processing, 2022, by smoothed Weiszfeld steps. Krum: Blanchard et al., Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent, NIPS 2017.

Unlike in some of these papers, every silo has the same weight, whatever its n_k, because a malicious silo could report
a large n_k.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from .aggregation import Payload, weighted_sum

Rule = Literal["median", "trimmed_mean", "geometric_median", "krum"]
COLUMNS = 1 << 16
"""Numbers per silo that are processed together."""
STEPS, CLOSE = 200, 1e-10
"""Maximum number of Weiszfeld steps, and the change of a silo's weight below which they stop."""


def silos_needed(rule: Rule, max_byzantine: int) -> int:
    """Return the number of replies that a rule needs to tolerate `max_byzantine` Byzantine silos."""
    return 2 * max_byzantine + (3 if rule == "krum" else 1)


def combined(rule: Rule, payloads: Sequence[Payload], max_byzantine: int) -> Payload:
    """Aggregate the silos' payloads, which are finite and have one form, by a rule; the result has the same form.

    Integer tensors are copied from the first silo, as for means. Raises ValueError for fewer payloads than
    `silos_needed`.
    """
    if len(payloads) < (least := silos_needed(rule, max_byzantine)):
        raise ValueError(
            f"{len(payloads)} payloads, expected at least {least} for {rule!r} and {max_byzantine} Byzantine silos"
        )
    if rule == "median":
        return _by_coordinate(payloads, (len(payloads) - 1) // 2)
    if rule == "trimmed_mean":
        return _by_coordinate(payloads, max_byzantine)
    apart = squared_distances(payloads)
    weights = krum_weights(apart, max_byzantine) if rule == "krum" else geometric_weights(apart)
    return _each(payloads, lambda tensors: weighted_sum(tensors, weights))


def squared_distances(payloads: Sequence[Payload]) -> Tensor:
    """Return (S, S) squared L2 distances between payloads, over all floating-point tensors, in float64."""
    apart = torch.zeros(len(payloads), len(payloads), dtype=torch.float64)
    for group, tensors in sorted(payloads[0].items()):
        for name, tensor in sorted(tensors.items()):
            if tensor.is_floating_point():
                for columns in _columns([payload[group][name] for payload in payloads]):
                    # Not by matrix products, in which a distant silo would swamp the other distances.
                    apart += torch.cdist(columns, columns, compute_mode="donot_use_mm_for_euclid_dist").square()
    return apart


def krum_weights(apart: Tensor, max_byzantine: int) -> list[float]:
    """Return 1 for the silo with the smallest sum of squared distances to its S - max_byzantine - 2 nearest, else 0."""
    count = len(apart)
    nearest = apart.sort(1).values[:, 1 : count - max_byzantine - 1]  # the first one is the silo itself
    chosen = int(nearest.sum(1).argmin())
    return [float(k == chosen) for k in range(count)]


def geometric_weights(apart: Tensor) -> list[float]:
    """Return the weights of silos in their geometric median, by squared distances (S, S)."""
    count = len(apart)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    smooth = 1e-6 * float(apart.sqrt().median())
    for _ in range(STEPS):
        # |x_i - z|^2 of z = sum_k w_k x_k, without computing z.
        away = (apart @ weights - weights @ apart @ weights / 2).clamp_min(0).sqrt().clamp_min(smooth)
        if not bool((away > 0).all()):
            break  # all payloads are equal
        new = 1 / away
        new = new / new.sum()
        done = float((new - weights).abs().max()) < CLOSE
        weights = new
        if done:
            break
    return [float(weight) for weight in weights]


def _by_coordinate(payloads: Sequence[Payload], cut: int) -> Payload:
    """Return the mean of each coordinate without its `cut` smallest and `cut` largest values."""

    def middle(tensors: Sequence[Tensor]) -> Tensor:
        parts = [columns.sort(0).values[cut : len(tensors) - cut].mean(0) for columns in _columns(tensors)]
        flat = torch.cat(parts) if parts else torch.zeros(0)
        return flat.to(tensors[0].dtype).view(tensors[0].shape)

    return _each(payloads, middle)


def _each(payloads: Sequence[Payload], combine: Callable[[Sequence[Tensor]], Tensor]) -> Payload:
    return {
        group: {
            name: combine([payload[group][name] for payload in payloads]) if t.is_floating_point() else t.clone()
            for name, t in tensors.items()
        }
        for group, tensors in payloads[0].items()
    }


def _columns(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield (S, at most COLUMNS) float64: tensors of one shape, flattened and stacked, block by block."""
    blocks = zip(*(torch.split(tensor.reshape(-1), COLUMNS) for tensor in tensors), strict=True)
    for block in blocks if tensors[0].numel() else ():
        yield torch.stack(block).double()
