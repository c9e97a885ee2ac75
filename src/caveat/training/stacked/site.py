"""What a work sees where it runs for many silos at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ...core import Data, Site, Tensors


class NotStackable(Exception):
    """A work asks for something that stacked silos cannot give; the text says what."""


class Hidden:
    """What is each silo's own and no tensor: it can be handed on, but whatever asks what it is hears that it is not
    there.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def _refuse(self, *args: object) -> Any:
        raise NotStackable(f"it reads site.{self.name}, which is each silo's own")

    __repr__ = __str__ = __format__ = __eq__ = __hash__ = __len__ = __iter__ = __int__ = __index__ = _refuse


class NoData(Data):
    """A split of stacked silos, which have different numbers of examples: it has nothing to show."""

    name: str

    @classmethod
    def split(cls, name: str) -> NoData:
        none = torch.zeros(0)
        made = cls(none, none)
        made.name = name
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y", "batch", "labelled", "part"):
            raise NotStackable(f"it reads site.{self.name}, which stacked silos do not show")
        return super().__getattribute__(name)

    def __iter__(self) -> Iterator[Any]:
        raise NotStackable(f"it reads site.{self.name}, which stacked silos do not show")

    def __len__(self) -> int:
        raise NotStackable(f"it asks for len(site.{self.name}), which differs among stacked silos")

    def __repr__(self) -> str:
        return f"NoData({self.name!r})"


@dataclass(frozen=True)
class FitCall:
    """What a work has asked for with `Training.fit`."""

    training: Any
    site: Site
    loss: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[str, Tensor], Tensor] | None
    frozen: frozenset[str]
    remembered: Tensors | None
    """What the optimiser starts from, by names such as "exp_avg.PARAMETER"."""
    undecayed: frozenset[str]
    """Parameters without weight decay."""


@dataclass(frozen=True)
class StackedSite(Site):
    """A site that stands for K silos within `torch.func.vmap`: a work sees one of them, whose tensors are batched."""

    count: Tensor = field(kw_only=True)
    """n_k, the number of training examples: 0-dimensional int64."""
    trainer: Callable[[FitCall], tuple[Tensor, Tensors]] = field(kw_only=True)
    """Trains in place of `Training.fit`: the number of steps, 0-dimensional, and what an optimiser remembers of them"""

    @classmethod
    def of(
        cls,
        site: Site,
        count: Tensor,
        trainer: Callable[[FitCall], tuple[Tensor, Tensors]],
    ) -> StackedSite:
        """A silo's site as one that stands for many."""
        train, validation, calibration = map(NoData.split, ("train", "validation", "calibration"))
        silo, domain, secret = (cast(Any, Hidden(name)) for name in ("id", "domain", "secret"))
        return cls(
            silo, train, validation, calibration, site.module, round=site.round, horizon=site.horizon, own=site.own,
            domain=domain, secret=secret, count=count, trainer=trainer,
        )  # fmt: skip

    @property
    def examples(self) -> Any:  # a tensor, which behaves as the number does in what works make of it
        return self.count
