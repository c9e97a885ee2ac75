"""Runs on silos whose data are on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .. import data
from ..core import SiloId, horizon
from ..core.silo import FederationInfo
from ..data.silo_collection import Population
from ..data.splits import NAMES
from ..engines.executor import Executor
from ..engines.single_machine import SingleMachineEngine
from ..engines.vectorization import Vectorization
from ..engines.worker_process import Rebuild
from ..files import SiloStore, write_json
from ..files.schema import Features, Gallery, RunFile
from ..methods.plugins import named
from ..nn.model_checks import check_ids
from .answering import AnsweringRun
from .feature_projection import features
from .fingerprints import data_fingerprint
from .frozen_features import SilosWithFeatures, check_unchanging
from .gallery import gallery
from .stored_preparation import keep_preparation


@dataclass(frozen=True, kw_only=True)
class LocalRun(AnsweringRun):
    """A run on silos whose data are on this machine."""

    silos: data.Silos
    sets: tuple[str, ...] = ()
    """Keys, changed when the run was continued, that do not affect results, such as "data.source=PLACE"."""

    @cached_property
    def info(self) -> FederationInfo:
        return FederationInfo.of(
            self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes, self.silos.dtype,
            self.silos.positive, self.silos.subgroup_names, self.silos.target,
        )  # fmt: skip

    @cached_property
    def measured(self) -> list[SiloId]:
        return super().measured

    @cached_property
    def participants(self) -> Sequence[SiloId]:
        return super().participants

    @property
    def preparation(self) -> data.Preparation:
        return self.silos.preparation

    @property
    def unusual(self) -> Sequence[str]:
        return self.silos.unusual

    @property
    def can_be_extended(self) -> bool:
        # Not kept if other training rounds follow, as with UEFL and ensembles.
        steps = self.complete_method.schedule()
        return self.spec.data is not None and horizon(steps) == getattr(self.method, "rounds", None)

    def baselines(self, rounds: int | None = None) -> list[LocalRun]:
        """Return the runs of the baselines, with `rounds` training rounds if given."""
        return [
            dataclasses.replace(
                self, spec=self.spec.baseline(method, rounds), folder=self.folder / "baselines" / method.name, reset=(),
                given=None,
            )
            for method in self.spec.baselines
        ]  # fmt: skip

    def with_baselines(self) -> list[LocalRun]:
        """Return the run and its baselines."""
        return [self, *self.baselines()]

    def check(self) -> None:
        self.silos.check(self.spec.batch_size, one_class=True)
        super().check()
        if self.frozen_encoder is not None:
            check_unchanging(self.silos[0])
        if not self.silos.dtype.is_floating_point:
            self._check_ids()

    def _check_ids(self) -> None:
        """Raise DataError for token ids in memory that the model lacks; checks only the first silo of a population."""
        module, population = self.spec.first_module(self.info), isinstance(self.silos.silos, Population)
        for silo in self.silos[:1] if population else self.silos:
            for name, part in ({name: getattr(silo, name) for name in NAMES} | {**silo.streams}).items():
                if isinstance(part.x, Tensor) and len(part.x):
                    check_ids(module, part.x, f"silo {silo.name!r}, {name}")

    def executor(self) -> Executor:
        silos = self.silos.by_name
        if self.frozen_encoder is not None:
            silos = SilosWithFeatures(silos, self.frozen_encoder, self.predicts_on)
        return self.executor_of(silos, self.participants, SiloStore(self.folder / "state" / "silos"))

    def engine(self) -> SingleMachineEngine:
        return SingleMachineEngine(
            self.executor(), self.workers, self.devices, self.rebuild, Vectorization(self.vectorized),
            self.spec.federation.secure,
        )  # fmt: skip

    @property
    def rebuild(self) -> Rebuild | None:
        """The data from which workers that cannot be forked reconstruct the run; None for silos of a Python program."""
        if self.spec.data is None:
            return None
        about = {"folder": str(self.folder.absolute()), "rounds": getattr(self.method, "rounds", None)}
        return {"by": "caveat.runs.respawned_worker", **about, "sets": list(self.sets), "plugins": named()}

    def description(self) -> RunFile:
        found = data_fingerprint(self.silos, self._recorded)
        return super().description().model_copy(update={"data": found})

    @property
    def _recorded(self) -> list[SiloId]:
        """The silos whose splits are recorded in a file."""
        return [*self.measured, *self.spec.newcomers]

    def prepare(self) -> None:
        super().prepare()
        splits = data.splits_record(map(self.silos.named, self._recorded))
        write_json(self.folder / "splits.json", splits)
        keep_preparation(self.folder, self.preparation)

    def gallery(self) -> Gallery:
        return gallery(self.silos, self.measured, self.predictor)

    def features(self) -> Features | None:
        return features(self.silos, self.measured, lambda silo: self._predicting(silo, self.complete_method.features))
