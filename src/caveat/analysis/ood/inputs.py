"""Foreign inputs: what nobody trained with, made of a silo's own test inputs, and the streams that a run has."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core import Silo, key

LEVELS = (8, 24, 38, 76, 255)
"""Standard deviations of noise in grey levels, of which the range of pixels has 255."""
FAR_GREY, FAR_COLOR = 24, 38
"""From which noise is far, in images of one channel and of several."""
DISTANCES = (2, 5, 20)
"""By how many standard deviations the columns of a table are moved; from 5 on it is far."""
ONE_COLUMN = 10
"""By how many the first column alone is moved."""
NUMBERS = 10
"""Different values of a column from which on it counts as one of numbers, not of codes."""
STREAMS = {"ood_global": "other data", "ood_local": "what other silos know"}
SHARES = (0.25, 0.5, 1.0)
"""Of ids of tokens that are replaced by others."""
MOST = 500
"""Inputs of a silo that are tried."""


class Foreign(NamedTuple):
    """Inputs of one kind, and whether they are far from what the federation knows."""

    kind: str
    far: bool
    x: Tensor


def foreign(silo: Silo, seed: int) -> Iterator[Foreign]:
    """All kinds of foreign inputs of a silo. What is drawn depends on the seed, the kind and the silo alone."""
    x = silo.test.x[:MOST]
    kinds = _images if x.ndim == 4 else _rows if x.is_floating_point() else _tokens
    yield from kinds(silo, x, seed)
    for name, stream in silo.streams.items():
        if len(stream):
            yield Foreign(STREAMS.get(name, name), name == "ood_global", stream.x[:MOST])


def _images(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    low, high = float(silo.train.x.min()), float(silo.train.x.max())
    far = FAR_GREY if x.shape[1] == 1 else FAR_COLOR
    noise = torch.randn(x.shape, generator=_generator(seed, "noise", silo))
    for level in LEVELS:
        yield Foreign(f"noise of {level}", level >= far, x + noise * (level / 255 * (high - low)))
    yield Foreign("pure noise", True, (low + high) / 2 + noise * (high - low) / 4)
    yield Foreign("black", True, torch.full_like(x, low))
    yield Foreign("white", True, torch.full_like(x, high))
    order = torch.randperm(x[0, 0].numel(), generator=_generator(seed, "shuffled", silo))
    yield Foreign("shuffled pixels", True, x.flatten(2)[:, :, order].view_as(x))
    yield Foreign("inverted", False, low + high - x)
    yield Foreign("blurred", False, F.avg_pool2d(x, 5, 1, 2, count_include_pad=False))
    side = max(1, x.shape[-1] // 5)
    yield Foreign("shifted", False, x.roll((side, side), (2, 3)))


def _rows(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    train = silo.train.x
    columns = [c for c in range(x.shape[1]) if len(torch.unique(train[:, c])) > NUMBERS] or list(range(x.shape[1]))
    deviation = train.std(0)
    signs = torch.randn(x.shape, generator=_generator(seed, "moved", silo)).sign()
    for distance in DISTANCES:
        moved = x.clone()
        moved[:, columns] += distance * signs[:, columns] * deviation[columns]
        yield Foreign(f"moved by {distance} sd", distance >= 5, moved)
    one = x.clone()
    one[:, columns[0]] += ONE_COLUMN * deviation[columns[0]]
    yield Foreign(f"one column by {ONE_COLUMN} sd", True, one)
    if len(columns) > 1:
        swapped = x.clone()
        swapped[:, columns[:2]] = x[:, [columns[1], columns[0]]]
        yield Foreign("columns swapped", False, swapped)


def _tokens(silo: Silo, x: Tensor, seed: int) -> Iterator[Foreign]:
    """Ids of a model's vocabulary, so that it can be asked: those that the silo trains with."""
    generator = _generator(seed, "tokens", silo)
    known = torch.unique(silo.train.x)
    other = known[torch.randint(len(known), x.shape, generator=generator)]
    for share in SHARES:
        replaced = torch.rand(x.shape, generator=generator) < share
        yield Foreign(f"{share:.0%} of ids replaced", share == 1, torch.where(replaced, other, x))
    yield Foreign("one id throughout", True, other[:, :1].expand_as(x).contiguous())
    order = torch.randperm(x.shape[1], generator=generator)
    yield Foreign("shuffled order", False, x[:, order])


def _generator(seed: int, purpose: str, silo: Silo) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, "foreign", purpose, silo.name))
