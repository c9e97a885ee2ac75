"""Data silos: their splits, what a client task can access, and what the server knows about a silo."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from .aggregation import SiloId, Tensors
from .devices import brought
from .errors import ConfigurationError, DataError
from .quantity import Quantity


class Data(NamedTuple):
    """Inputs and labels of one split."""

    x: Tensor  # (N, ...) float32, or int64 for token ids
    y: Tensor  # (N,) int64 class indices

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Return the number and shape of the examples. Values are not shown, because they must not appear in logs."""
        return f"Data({len(self)} of {tuple(self.x.shape[1:])})"

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of a training step at the positions `index`, which is on the device `counted_on`."""
        return self.x[index], self.y[brought(index, self.y.device)]

    @property
    def counted_on(self) -> torch.device:
        """Device on which positions of examples avoid synchronization. It is the device of the inputs, or the CPU if
        batches are moved to a device one by one."""
        found: torch.device = getattr(self.x, "kept_on", self.x.device)
        return found

    def labeled(self, y: Tensor) -> Data:
        """Return the same inputs with other labels (N,)."""
        return Data(self.x, y)

    def part(self, index: Tensor) -> Data:
        """Return the examples at these positions."""
        return Data(self.x[brought(index, self.counted_on)], self.y[brought(index, self.y.device)])


class AugmentedData(Data):
    """Training data whose batches are randomly augmented. Every other access returns the original inputs."""

    augment: Callable[[Tensor], Tensor]
    """Function that maps a batch (B, ...) to a batch of the same shape and type, using torch's global generator."""
    names: tuple[str, ...]
    """Names of the augmentations."""

    @classmethod
    def of(cls, data: Data, augment: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> AugmentedData:
        made = cls(data.x, data.y)
        made.augment, made.names = augment, names
        return made

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return an augmented batch. Raises DataError if augmentation changes its shape or type."""
        x = self.x[index]
        changed: object = self.augment(x)
        if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (x.shape, x.dtype):
            form = f"a value of type {type(changed).__name__}"
            if isinstance(changed, Tensor):
                form = f"shape {tuple(changed.shape)} and dtype {changed.dtype}"
            raise DataError(
                f"augment {self.names[0]!r} changed a batch of shape {tuple(x.shape)} and dtype {x.dtype} to {form}"
            )
        return changed, self.y[brought(index, self.y.device)]

    def labeled(self, y: Tensor) -> AugmentedData:
        return self.of(super().labeled(y), self.augment, self.names)

    def part(self, index: Tensor) -> AugmentedData:
        return self.of(super().part(index), self.augment, self.names)


class LateData(Data):
    """A split that is read on every access. An access raises what reading raises."""

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
    """Everything that code at a silo or at the server can access. The test split is not part of it.

    `train`, `validation` and `calibration` are `Data`, with inputs x (N, ...) for the model and labels y (N,) int64. At
    the server, whose `id` is "server", these splits are empty. Use `train` for training and `validation` for model
    selection, and do not use `calibration`, which is reserved for guarantees. `module` is the built model, which all
    silos of a process share: load weights before each use (`caveat.methods.tools.load`), copy them afterwards
    (`snapshot`), and return them in an update or a state.
    """

    id: SiloId
    train: Data
    validation: Data
    calibration: Data
    module: nn.Module
    """Workspace; its weights are undefined between two calls."""
    round: int = field(default=0, kw_only=True)
    """Position of the round in the schedule."""
    horizon: int = field(default=0, kw_only=True)
    """Number of rounds in the schedule up to and including the last training round; 0 if unknown."""
    moments: Tensors | None = field(default=None, kw_only=True, repr=False)
    """Optimizer state that persists between rounds, if configured. `Training.fit` starts from it and updates it."""
    own: nn.Module | None = field(default=None, kw_only=True)
    """Second workspace, for the silo's personalized model, if the method has one."""
    domain: str = field(default="", kw_only=True)
    """Origin of the silo's data; empty at the server."""
    joins: bool = field(default=False, kw_only=True)
    """Whether the silo joins a finished federation. Its updates are then not aggregated, and it took no part in the
    agreement on the schema."""
    fitted: frozenset[str] | None = field(default=None, kw_only=True)
    """Names of the parameters of `module` that training may change; None: training may change all."""
    subgroups: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True, repr=False)
    """Per split, (N,) int64 on the CPU: the subgroup of each input, or -1 if it is unknown; empty without subgroups."""
    subgroup: Tensor | None = field(default=None, kw_only=True, repr=False)
    """(N,) subgroups of the inputs passed to `Method.answer`; None: the subgroups are unknown."""
    values: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True, repr=False)
    """Per split, (N,) float64: the targets, if they are quantities or times, whose bars are the labels; empty for
    classes."""
    secret: int = field(default=0, kw_only=True)
    """Seed of the noise that protects a silo. In a federation across machines, only the silo knows this number."""

    @property
    def device(self) -> torch.device:
        """Device of the task, on which its inputs are and its results must be."""
        return next(self.module.parameters()).device

    @property
    def examples(self) -> int:
        """n_k, the number of training examples."""
        return len(self.train.y)

    def truth(self, split: str) -> Tensor:
        """Return the true values (N,) of a split's inputs, which are quantities or classes."""
        data: Data = getattr(self, split)
        return brought(self.values[split], data.y.device) if split in self.values else data.y

    def asking(self, split: str) -> Self:
        """Return the context for calls of `Method.answer` with the inputs of a split."""
        return replace(self, subgroup=self.subgroups.get(split)) if self.subgroups else self


@dataclass(frozen=True)
class TestContext(SiloContext):
    """A context with the test split. It is only for evaluation, and never passed to a method's client tasks."""

    __test__ = False  # tells pytest that this is not a test class
    test: Data
    streams: Mapping[str, Data] = field(default_factory=dict, kw_only=True)
    """Out-of-distribution test inputs, "ood_local" and "ood_global". The label -1 means no class of the model."""


@dataclass(frozen=True)
class Silo:
    """A data silo: its name, four disjoint splits, and the origin of its data."""

    name: SiloId
    domain: str
    train: Data
    validation: Data
    calibration: Data
    test: Data
    indices: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Per split and stream, the int64 positions of its examples in the source, whose hashes are in `splits.json`."""
    streams: Mapping[str, Data] = field(default_factory=dict)
    """Out-of-distribution test inputs, by name. The label -1 means no class of the model."""
    subgroups: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Per split, (N,) int64: the subgroup of each example, such as a sex, or -1 if it is unknown; empty without
    subgroups."""
    values: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Per split, (N,) float64: the targets, if they are quantities or times, whose bars are the labels; empty for
    classes."""

    def context(self, module: nn.Module, round: int = 0, own: nn.Module | None = None) -> SiloContext:
        """Return what a method can access at this silo in a round, with workspaces `module` and `own`."""
        splits = self.train, self.validation, self.calibration
        values = self.values  # without the test split if the silo is read on access
        if "test" in values:
            values = {name: each for name, each in values.items() if name != "test"}
        return SiloContext(
            self.name, *splits, module, round=round, own=own, domain=self.domain, subgroups=self.subgroups,
            values=values,
        )  # fmt: skip

    def test_context(self, module: nn.Module, own: nn.Module | None = None) -> TestContext:
        """Return what an evaluation can access at this silo, which includes the test split and the streams."""
        splits = self.train, self.validation, self.calibration
        return TestContext(
            self.name, *splits, module, self.test, streams=self.streams, own=own, domain=self.domain,
            subgroups=self.subgroups, values=self.values,
        )  # fmt: skip


TOGETHER = "all silos"
"""The name under which the sum over silos is reported if single silos are unknown."""
MOST = 10**9
"""Maximum number of examples that a silo can report for a split or a class."""
LONGEST = 500
"""Maximum number of characters in the name of a silo or a domain."""
SPLITS = ("train", "validation", "calibration", "test")
Made = TypeVar("Made")


@dataclass(frozen=True)
class SiloInfo:
    """Metadata of a silo: its name, the origin of its data and its numbers of examples."""

    name: SiloId
    domain: str
    examples: Mapping[str, int]
    """Number of examples per split."""
    class_counts: tuple[int, ...]
    """Training examples per class."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of examples removed from each split since the silo joined; empty if none were removed."""

    @classmethod
    def of(cls, silo: Silo, classes: int) -> SiloInfo:
        """Return the metadata of a silo, from its data and the number of classes."""
        # A censored time has the label of its bar plus `classes`, and is counted in this bar.
        counts = silo.train.y.remainder(classes).bincount(minlength=classes).tolist()
        return cls(silo.name, silo.domain, {split: len(getattr(silo, split)) for split in SPLITS}, tuple(counts))

    @classmethod
    def of_json(cls, value: Any, classes: int) -> SiloInfo:
        """Return the metadata that a silo sent, which is the output of `to_json`. Raises DataError if it is invalid."""
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
        raise DataError(f"invalid metadata of a silo: {str(value)[:200]}")

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as JSON values, which a silo sends before it takes part."""
        found = {**vars(self), "examples": dict(self.examples), "class_counts": list(self.class_counts)}
        del found["dropped"]
        return found | ({"dropped": dict(self.dropped)} if self.dropped else {})

    def rest_of(self, before: SiloInfo) -> bool:
        """Return whether this silo is the silo `before` without some examples, all of which are recorded as dropped."""
        left = {split: self.dropped.get(split, 0) - before.dropped.get(split, 0) for split in SPLITS}
        return (
            (self.name, self.domain) == (before.name, before.domain)
            and all(left[split] >= 0 for split in SPLITS)
            and all(self.examples[split] + left[split] == before.examples[split] for split in SPLITS)
            and all(now <= then for now, then in zip(self.class_counts, before.class_counts, strict=True))
        )

    @classmethod
    def of_sum(cls, infos: Iterable[SiloInfo]) -> SiloInfo:
        """Return the metadata of several silos together."""
        known = list(infos)
        examples = {split: sum(each.examples[split] for each in known) for split in SPLITS}
        dropped = {split: n for split in SPLITS if (n := sum(each.dropped.get(split, 0) for each in known))}
        counts = (each.class_counts for each in known)
        return cls(TOGETHER, "", examples, tuple(map(sum, zip(*counts, strict=True))), dropped)

    @property
    def most(self) -> int:
        """Number of examples of the largest split, which is the maximum weight of an update."""
        return max(self.examples.values())


def positive_class(positive: str | None, classes: Sequence[str]) -> int:
    """Return the index of the positive class: the class of the given name, or the second of two classes. Raises
    ConfigurationError for an unknown name, or if there are more than two classes."""
    if positive is None:
        return 1
    if len(classes) != 2:
        raise ConfigurationError(
            f"data.positive_class = {positive!r} needs two classes, but there are {len(classes)}; remove the key",
            "data.positive_class",
        )
    if positive not in classes:
        raise ConfigurationError(
            f"data.positive_class = {positive!r}: expected one of the two classes, {classes[0]!r} or {classes[1]!r}",
            "data.positive_class",
        )
    return list(classes).index(positive)


class LazyMapping(Mapping[SiloId, Made]):
    """A mapping with one value per silo, which is computed on access, because there may be many silos, or their data
    may be on other machines."""

    def __init__(self, names: Collection[SiloId], make: Callable[[SiloId], Made]) -> None:
        self.names, self.make = names, make

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[SiloId]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: SiloId) -> Made:
        if name not in self.names:
            raise KeyError(name)
        return self.make(name)


@dataclass(frozen=True)
class FederationInfo:
    """The silos of a run, in order, and the format of their inputs and labels."""

    shape: tuple[int, ...]
    """Shape of one input: (C, H, W) for images, (D,) for features, (T,) for tokens, (T, C) for time series."""
    classes: tuple[str, ...]
    silo_infos: Mapping[SiloId, SiloInfo]
    order: Sequence[SiloId] | None = None
    """Names of the silos in the order of the run; None: the order of `silo_infos`."""
    dtype: torch.dtype = torch.float32
    """Type of the inputs: float32, or int64 for token ids."""
    positive: str | None = None
    """Positive class of two classes, for metrics; None: the second class, or there are more than two classes."""
    subgroups: tuple[str, ...] = ()
    """Names of the subgroups of inputs that have separate guarantees."""
    target: Quantity | None = None
    """The quantity to predict, whose bars are the classes; None if the target has classes."""

    @classmethod
    def of(
        cls,
        silos: Mapping[SiloId, Silo],
        names: Sequence[SiloId],
        shape: tuple[int, ...],
        classes: tuple[str, ...],
        dtype: torch.dtype = torch.float32,
        positive: str | None = None,
        subgroups: tuple[str, ...] = (),
        target: Quantity | None = None,
    ) -> FederationInfo:
        return cls(
            shape,
            classes,
            LazyMapping(silos, lambda name: SiloInfo.of(silos[name], len(classes))),
            names,
            dtype,
            positive,
            subgroups,
            target,
        )

    def __len__(self) -> int:
        return len(self.silo_infos)

    @property
    def names(self) -> Sequence[SiloId]:
        return list(self.silo_infos) if self.order is None else self.order
