"""Data silos: their splits, what a client task can access, and what the server knows about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .aggregation import SiloId, Tensors
from .devices import brought
from .errors import ConfigurationError, DataError


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


MOST = 10**9
"""The most examples that a silo can say to have in a split, or of a class."""
LONGEST = 500
"""The most characters of the name of a silo or a domain."""
SPLITS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class SiloInfo:
    """A silo's name, where its data come from, and how much it has."""

    name: SiloId
    domain: str
    examples: Mapping[str, int]
    """How many examples each split has."""
    class_counts: tuple[int, ...]
    """Training examples per class."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many examples have left a split since the silo joined; empty where none have."""

    @classmethod
    def of(cls, silo: Silo, classes: int) -> SiloInfo:
        """Metadata of a silo, from its data and the number of classes."""
        counts = silo.train.y.bincount(minlength=classes).tolist()
        return cls(silo.name, silo.domain, {split: len(getattr(silo, split)) for split in SPLITS}, tuple(counts))

    @classmethod
    def of_json(cls, value: Any, classes: int) -> SiloInfo:
        """What `to_json` has made, as a silo sends it. Raises DataError for anything else."""
        try:
            dropped = value.get("dropped", {})
            info = cls(value["name"], value["domain"], value["examples"], tuple(value["class_counts"]), dropped)
            counts = [*info.examples.values(), *info.class_counts, *dropped.values()]
            whole = all(type(count) is int and 0 <= count <= MOST for count in counts)
            fits = set(info.examples) == set(SPLITS) >= set(dropped) and len(info.class_counts) == classes
            named = all(
                isinstance(text, str) and text.isprintable() and len(text) <= LONGEST
                for text in (info.name, info.domain)
            )
            if whole and fits and named and sum(info.class_counts) == info.examples["train"]:
                return info
        except (KeyError, TypeError, AttributeError):
            pass
        raise DataError(f"a silo's card that is none: {str(value)[:200]}")

    def to_json(self) -> dict[str, Any]:
        """What a silo sends of itself before it takes part, for `of_json`."""
        found = {**vars(self), "examples": dict(self.examples), "class_counts": list(self.class_counts)}
        del found["dropped"]
        return found | ({"dropped": dict(self.dropped)} if self.dropped else {})

    def rest_of(self, before: SiloInfo) -> bool:
        """Whether this is what a silo has once examples have left it: all that it had are there or counted as left."""
        left = {split: self.dropped.get(split, 0) - before.dropped.get(split, 0) for split in SPLITS}
        return (
            (self.name, self.domain) == (before.name, before.domain)
            and all(left[split] >= 0 for split in SPLITS)
            and all(self.examples[split] + left[split] == before.examples[split] for split in SPLITS)
            and all(now <= then for now, then in zip(self.class_counts, before.class_counts, strict=True))
        )

    @property
    def most(self) -> int:
        """The examples of its largest split: no update can speak for more."""
        return max(self.examples.values())


def positive_class(positive: str | None, classes: Sequence[str]) -> int:
    """The index of the positive class of two: that of its name, or the second one.

    Raises ConfigurationError for a name that neither has, and where there are more classes.
    """
    if positive is None:
        return 1
    if len(classes) != 2:
        raise ConfigurationError(
            f"data.positive_class = {positive!r} names the positive class of two, but there are {len(classes)} "
            "classes; of several each is taken against the rest",
            "data.positive_class",
        )
    if positive not in classes:
        raise ConfigurationError(
            f"data.positive_class = {positive!r}, expected the name of one of the two classes, {classes[0]!r} or "
            f"{classes[1]!r}",
            "data.positive_class",
        )
    return list(classes).index(positive)


class LazySiloInfos(Mapping[SiloId, SiloInfo]):
    """A `SiloInfo` per silo, made when it is asked for, since silos may be many and made on demand themselves."""

    def __init__(self, silos: Mapping[SiloId, Silo], classes: int) -> None:
        self.silos, self.classes = silos, classes

    def __len__(self) -> int:
        return len(self.silos)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.silos)

    def __getitem__(self, name: SiloId) -> SiloInfo:
        return SiloInfo.of(self.silos[name], self.classes)


@dataclass(frozen=True)
class FederationInfo:
    """The silos of a run, in its order, and what their inputs and labels are."""

    shape: tuple[int, ...]
    """The shape of one input: (C, H, W) of an image, (D,) of features, (T,) of tokens, (T, C) of a series."""
    classes: tuple[str, ...]
    silo_infos: Mapping[SiloId, SiloInfo]
    order: Sequence[SiloId] | None = None
    """The names of the silos; None where `silo_infos` lists them in the order of the run."""
    dtype: torch.dtype = torch.float32
    """The type of inputs: float32, or int64 for ids of tokens."""
    positive: str | None = None
    """Which of two classes figures are of; None for the second one, and where there are more."""

    @classmethod
    def of(
        cls,
        silos: Mapping[SiloId, Silo],
        names: Sequence[SiloId],
        shape: tuple[int, ...],
        classes: tuple[str, ...],
        dtype: torch.dtype = torch.float32,
        positive: str | None = None,
    ) -> FederationInfo:
        return cls(shape, classes, LazySiloInfos(silos, len(classes)), names, dtype, positive)

    def __len__(self) -> int:
        return len(self.silo_infos)

    @property
    def names(self) -> Sequence[SiloId]:
        return list(self.silo_infos) if self.order is None else self.order
