"""Payloads as vectors of 64-bit fixed-point numbers, whose sums modulo 2^64 are exact and independent of their order.

A floating-point number x of a silo with weight w becomes the integer nearest to w x 2^32. So each silo adds an error of
at most 2^-33 plus one part in 2^53 of w x, by which the product is rounded in float64; the sum is rounded once more to
float64, by at most one part in 2^53. Integers are exact; they are summed as they are, without weights. Two words
precede the tensors: the number 1 and the weight. Their sums are known in advance, so a sum in which masks do not cancel
is detected.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import DataError, Payload, RunError

FRACTION = 32
"""Number of bits after the point."""
CHECKS = 2
"""Number of words before the tensors: the number of silos, and their weights."""
LEAST = 3
"""Minimum number of silos in a sum: with two, each could subtract its own numbers from the sum."""
MOST_WEIGHT = 1 << 31
"""Maximum weight of a silo."""
MOST_WORDS = 1 << 31
"""Maximum number of words."""
Words = NDArray[np.uint64]
"""A vector of numbers modulo 2^64."""
TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def threshold(silos: int) -> int:
    """Return how many of the silos must take part in every phase: more than two thirds.

    A silo signs one sum of a slot, and gives shares only for a sum that this many silos signed. Two different sums
    would need 2 k signatures, but n silos give at most n + c if c of them sign both. So with c <= n / 3, silos open at
    most one sum of a slot, and all of them the same.
    """
    return max(LEAST, 2 * silos // 3 + 1)


class Segment(NamedTuple):
    """The place of one tensor in a vector."""

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def floats(self) -> bool:
        return "float" in self.dtype


class Layout(NamedTuple):
    """The groups and tensors of a payload, in the order of the vector. All silos must have the same layout."""

    groups: tuple[str, ...]
    entries: tuple[Segment, ...]

    @property
    def words(self) -> int:
        return CHECKS + sum(prod(each.shape) for each in self.entries)

    def to_text(self) -> str:
        return json.dumps([self.groups, self.entries])

    @classmethod
    def of_text(cls, text: str) -> "Layout":
        """Parse a layout from a silo. Raises DataError for an invalid text."""
        try:
            groups, entries = json.loads(text)
            found = cls(
                tuple(map(str, groups)),
                tuple(Segment(str(g), str(n), tuple(int(i) for i in s), str(d)) for g, n, s, d in entries),
            )
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise DataError(f"invalid layout of a sum: {type(error).__name__}: {error}") from None
        sizes = [prod(each.shape) for each in found.entries if min(each.shape, default=0) >= 0]
        known = all(each.dtype in TYPES and each.group in found.groups for each in found.entries)
        if not known or len(sizes) < len(found.entries) or found.words > MOST_WORDS:
            raise DataError("invalid layout of a sum: expected valid shapes and types of tensors")
        return found

    def form(self) -> Payload:
        """Return the tensors on torch's device "meta", with shape and type."""
        found: Payload = {group: {} for group in self.groups}
        for each in self.entries:
            found[each.group][each.name] = torch.empty(each.shape, dtype=getattr(torch, each.dtype), device="meta")
        return found


def layout_of(payload: Payload) -> Layout:
    """Return the layout of a payload; tensors are sorted by group and name."""
    return Layout(
        tuple(payload),
        tuple(
            Segment(group, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for group, name, tensor in _tensors(payload)
        ),
    )


def _tensors(payload: Payload) -> list[tuple[str, str, torch.Tensor]]:
    return [(group, name, tensors[name]) for group, tensors in sorted(payload.items()) for name in sorted(tensors)]


def encode(payload: Payload, weight: int, silos: int) -> Words:
    """Return a payload as fixed-point numbers, times its weight, for a sum over at most `silos` silos. Raises RunError,
    naming the tensor, for numbers that are not finite or so large that the sum could overflow, and for a weight that
    is not from 1 to `MOST_WEIGHT`. The messages contain no numbers of the silo."""
    if not 1 <= weight <= MOST_WEIGHT:
        raise RunError(f"the weight of a silo in a sum must be from 1 to {MOST_WEIGHT:,}")
    most = (2**63 - 1) // silos
    parts = [np.array([1, weight], np.int64)]
    for group, name, tensor in _tensors(payload):
        if tensor.is_floating_point():
            units = np.rint(tensor.detach().double().numpy().reshape(-1) * (weight * 2.0**FRACTION))
            # float(most) may be rounded up, by less than its spacing.
            if not float(np.abs(units).max(initial=0)) < float(most) * (1 - 2.0**-52):
                raise RunError(
                    f"{group}/{name} has an entry that is infinite, NaN or too large: the entry times the silo's "
                    f"weight must be below {most / 2**FRACTION:.3g}, because sums over {silos} silos are 64-bit "
                    f"fixed-point numbers with {FRACTION} fractional bits; federation.secure = false has no such bound"
                )
            parts.append(units.astype(np.int64))
        else:
            whole = tensor.detach().to(torch.int64).numpy().reshape(-1)
            if whole.size and max(abs(int(whole.min())), abs(int(whole.max()))) > most:
                raise RunError(f"{group}/{name} has an integer outside of ±{most:,}, which is too large for a sum")
            parts.append(whole)
    return np.concatenate(parts).view(np.uint64)


class DecodedSum(NamedTuple):
    """A decoded sum over silos."""

    sums: Payload
    """Weighted sums of floating-point tensors, float64, and sums of integer tensors, int64 or int32 as the tensors."""
    silos: int
    weight: int

    def means(self, layout: Layout) -> Payload:
        """Return the weighted means in the types of the silos' tensors. Integer tensors are rounded means."""
        found: Payload = {group: {} for group in layout.groups}
        for each in layout.entries:
            total, dtype = self.sums[each.group][each.name], getattr(torch, each.dtype)
            mean = total / self.weight if each.floats else (total / self.silos).round()
            found[each.group][each.name] = mean.to(dtype)
        return found


def decode(words: Words, layout: Layout) -> DecodedSum:
    """Return the sums of a vector."""
    whole = torch.from_numpy(words.view(np.int64).copy())
    found: Payload = {group: {} for group in layout.groups}
    at = CHECKS
    for each in layout.entries:
        part = whole[at : at + prod(each.shape)].view(each.shape)
        at += part.numel()
        whole_type = torch.int32 if each.dtype == "int32" else torch.int64
        found[each.group][each.name] = part.double() / 2.0**FRACTION if each.floats else part.to(whole_type)
    return DecodedSum(found, int(whole[0]), int(whole[1]))


def sum_in_the_clear(
    payloads: Mapping[str, Payload], weights: Mapping[str, int], silos: int
) -> tuple[Layout, DecodedSum]:
    """Return the sum that masked vectors of these payloads have, bit by bit, because masks cancel exactly. Raises
    RunError for payloads with different layouts, and as `encode` does."""
    layout, total = None, None
    for silo, payload in sorted(payloads.items()):
        own, words = layout_of(payload), encode(payload, weights[silo], silos)
        if layout is not None and own != layout:
            raise RunError(f"silo {silo!r} has different tensors than the other silos, so its numbers cannot be added")
        layout, total = own, words if total is None else total + words
    if layout is None or total is None:
        raise RunError("no silos to sum over")
    return layout, decode(total, layout)
