"""A data silo, and what code may see of it where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .devices import brought
from .errors import DataError
from .tensors import SiloId, Tensors


class Data(NamedTuple):
    """Inputs and labels of one split."""

    x: Tensor  # (N, ...) float32, or int64 for ids of tokens
    y: Tensor  # (N,) int64 class indices

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """The number and shape of the examples; their values should be in no log."""
        return f"Data({len(self)} of {tuple(self.x.shape[1:])})"

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and labels of a step of training, by positions that lie on `counted_on`."""
        return self.x[index], self.y[brought(index, self.y.device)]

    @property
    def counted_on(self) -> torch.device:
        """Where positions of examples have to be for batches to be taken without waiting: beside the inputs, or on the
        CPU where these are brought from there batch by batch.
        """
        found: torch.device = getattr(self.x, "kept_on", self.x.device)
        return found

    def labeled(self, y: Tensor) -> Data:
        """The same inputs with other labels (N,)."""
        return Data(self.x, y)

    def part(self, index: Tensor) -> Data:
        """Some of the examples."""
        return Data(self.x[index], self.y[index])


class AugmentedData(Data):
    """Training data of which every batch is changed at random as it is taken; all else sees them as they are."""

    augment: Callable[[Tensor], Tensor]
    """A batch (B, ...) to one of the same shape and type, drawn from torch's global generator."""
    names: tuple[str, ...]
    """What the changes are called."""

    @classmethod
    def of(cls, data: Data, augment: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> AugmentedData:
        made = cls(data.x, data.y)
        made.augment, made.names = augment, names
        return made

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Raises DataError if the changed batch is of another shape or type."""
        x = self.x[index]
        changed: object = self.augment(x)
        if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (x.shape, x.dtype):
            form = f"{tuple(changed.shape)}, {changed.dtype}" if isinstance(changed, Tensor) else type(changed).__name__
            raise DataError(
                f"augment {self.names[0]!r} made {form} of a batch {tuple(x.shape)}, {x.dtype}; expected the same"
            )
        return changed, self.y[brought(index, self.y.device)]

    def labeled(self, y: Tensor) -> AugmentedData:
        return self.of(super().labeled(y), self.augment, self.names)

    def part(self, index: Tensor) -> AugmentedData:
        return self.of(super().part(index), self.augment, self.names)


class LateData(Data):
    """A split that is read when it is asked for. Raises whatever reading it does."""

    read: Callable[[], Data]

    @classmethod
    def of(cls, read: Callable[[], Data]) -> LateData:
        none = torch.zeros(0)
        made = cls(none, none)
        made.read = read
        return made

    def __getattribute__(self, name: str) -> Any:
        return getattr(self.read(), name) if name in ("x", "y") else super().__getattribute__(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __repr__(self) -> str:
        return "LateData()"


@dataclass(frozen=True)
class SiloContext:
    """What code may see where it runs, at a silo or at the server; there is no test split in reach.

    `train`, `validation` and `calibration` are `Data`: x (N, ...) as models take it and y (N,) int64. At the server,
    whose `id` is "server", all are empty. Train on `train`, choose by `validation`, leave `calibration` to what makes
    promises. `module` is the built model, shared by all silos that a process works for: put weights in before each use
    (`caveat.methods.tools.load`), take them out after it (`snapshot`), and return them in an update or a state.
    """

    id: SiloId
    train: Data
    validation: Data
    calibration: Data
    module: nn.Module
    """A workspace: its weights mean nothing between two calls."""
    round: int = field(default=0, kw_only=True)
    """Position in the schedule of the round that the work belongs to."""
    horizon: int = field(default=0, kw_only=True)
    """Rounds of the schedule up to its last one of training, that one included; 0 where nobody has counted."""
    moments: Tensors | None = field(default=None, kw_only=True, repr=False)
    """What an optimiser remembers from round to round, where that is wanted: `Training.fit` starts from there, and
    leaves there what it has come to."""
    own: nn.Module | None = field(default=None, kw_only=True)
    """A second workspace, for the silo's own model of its own architecture, if the method asks for one."""
    domain: str = field(default="", kw_only=True)
    """Where the silo's data come from; empty at the server."""
    joins: bool = field(default=False, kw_only=True)
    """Whether the silo joins a finished federation: nobody counts what it sends, and what all silos agreed on was
    agreed without it."""
    fitted: frozenset[str] | None = field(default=None, kw_only=True)
    """Names of those parameters of `module` that training may change; None where it may change all."""
    secret: int = field(default=0, kw_only=True)
    """What noise that protects a silo is drawn from; at a real silo a number that nobody else knows."""

    @property
    def device(self) -> torch.device:
        """Where the work is carried out: what it is given lies there, and what it makes has to."""
        return next(self.module.parameters()).device

    @property
    def examples(self) -> int:
        """n_k, the number of training examples."""
        return len(self.train.y)


@dataclass(frozen=True)
class TestContext(SiloContext):
    """A site with the test split in reach: handed to evaluation only, never to a method's work."""

    __test__ = False  # not a test class, whatever pytest thinks of its name
    test: Data
    streams: Mapping[str, Data] = field(default_factory=dict, kw_only=True)
    """Test inputs that the silo does not know: "ood_local", "ood_global". Label -1 is no class of the model."""


@dataclass(frozen=True)
class Silo:
    """One data silo: four disjoint splits and where they came from."""

    name: SiloId
    domain: str
    train: Data
    validation: Data
    calibration: Data
    test: Data
    indices: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Per split and stream, the positions of its examples in the source, as int64: what `splits.json` hashes."""
    streams: Mapping[str, Data] = field(default_factory=dict)
    """Test inputs that the silo does not know, by name; label -1 is no class of the model."""

    def context(self, module: nn.Module, round: int = 0, own: nn.Module | None = None) -> SiloContext:
        """What a method may see at this silo in a round, with `module` and `own` for workspaces."""
        splits = self.train, self.validation, self.calibration
        return SiloContext(self.name, *splits, module, round=round, own=own, domain=self.domain)

    def test_context(self, module: nn.Module, own: nn.Module | None = None) -> TestContext:
        """What an evaluation may see at this silo: also the test split and its streams."""
        splits = self.train, self.validation, self.calibration
        return TestContext(self.name, *splits, module, self.test, streams=self.streams, own=own, domain=self.domain)
