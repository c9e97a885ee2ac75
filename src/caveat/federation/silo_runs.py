"""A run as one silo knows it while it takes part, and as it has kept it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..core import DataError, SiloId
from ..core.silo_info import FederationInfo, SiloInfo
from ..engines.executor import Executor
from ..files.reading import Manifest, read
from ..files.schema.small_files import KeptState, OwnState
from ..runs.answering import AnsweringRun, KeptRun
from ..runs.local import LocalRun
from ..runs.prepared import PREPARATION
from ..runs.spec import RunSpec
from ..wrappers.evaluation import Evaluated
from ..wrappers.joining import Joining
from .own_books import KEPT


@dataclass(frozen=True, kw_only=True)
class ByOwnBooks(AnsweringRun):
    """A run of which a silo's own books say what belongs to it."""

    @property
    def manifest(self) -> Manifest:
        return own_manifest(self.folder)

    @property
    def positive(self) -> str | None:
        # No summary is kept at a silo.
        return self.info.positive

    def kept(self, silo: SiloId, t: int) -> KeptState | None:
        own = read(self.folder / KEPT, OwnState)
        return next((each for each in reversed(own.states) if each.t <= t), None)


@dataclass(frozen=True, kw_only=True)
class SiloRun(ByOwnBooks, LocalRun):
    """A run as one silo knows it: the data of one silo, the names of all."""

    names: tuple[SiloId, ...]
    secret: int

    @cached_property
    def info(self) -> FederationInfo:
        own = FederationInfo.of(
            self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes, self.silos.dtype
        ).silo_infos
        return FederationInfo(
            self.silos.shape, self.silos.classes, unknown(self.names) | dict(own), dtype=self.silos.dtype,
            positive=self.silos.positive,
        )  # fmt: skip

    def executor(self) -> Executor:
        return replace(super().executor(), secret=secret_of(self.secret, self.spec, len(self.names)))

    @property
    def joining(self) -> Executor:
        """What carries out works for a federation that is finished: the silo keeps its part and sends nothing."""
        return replace(self.executor(), method=Evaluated(Joining(self.complete_method, 0), self.spec.known_metrics))


@dataclass(frozen=True, kw_only=True)
class KeptSiloRun(ByOwnBooks, KeptRun):
    """A run as one silo has kept it, without its data."""

    names: tuple[SiloId, ...]
    positive_class: str | None = None
    """Which of two classes figures are of, as the federation's configuration says."""

    @cached_property
    def info(self) -> FederationInfo:
        prepares = self.prepares
        return FederationInfo(
            prepares.shape, prepares.classes, unknown(self.names), dtype=prepares.dtype, positive=self.positive_class
        )


def secret_of(secret: int, spec: RunSpec, silos: int) -> int:
    """What noise is drawn from: another number for each size of the noise among silos, by the same secret of one.

    Of one draw in two sizes, as two federations could ask for it, the update is what is left when it is taken away.
    """
    about = (secret, spec.privacy.clip, spec.privacy.noise, spec.cohort_size(silos))
    return int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:16], "big")


def unknown(names: Sequence[SiloId]) -> dict[SiloId, SiloInfo]:
    """Silos of which no more than their names is known."""
    return {name: SiloInfo(name, "", {}, ()) for name in names}


def own_manifest(folder: Path) -> Manifest:
    """What a silo's own books say of its files. Raises DataError where they are missing, damaged or older than its
    model.
    """
    own = read(folder / KEPT, OwnState)
    for place, what in (("silo.json", "the model"), (PREPARATION, PREPARATION)):
        if (folder / place).exists() and place not in own.files:
            raise DataError(f"{folder / KEPT} does not know of {what} beside it: put it back from a copy")
    return Manifest(folder, own.files, finished=False)
