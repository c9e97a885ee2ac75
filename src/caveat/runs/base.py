"""What a run does, wherever its silos are: a method, its settings, a folder, and the rounds that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..config import Evaluation
from ..core import ConfigurationError, Data, Decision, Method, Silo, SiloId, Site, key, seeded
from ..core.silo_info import FederationInfo
from ..engines.executor import Executor, workspace
from ..engines.rounds import Participation, Transport
from ..files.checkpoints import SiloStore
from ..nn.models import ModelSettings, PersonalModel, assign, build_model
from ..wrappers.evaluation import Evaluated
from ..wrappers.privacy import Privacy
from ..wrappers.uncertainty import Uncertainty


class Engine(Transport, Protocol):
    """A transport, and what a run asks of it beside rounds."""

    @property
    def method(self) -> Method:
        """The plan's, with evaluation around it."""

    def begin(self, t: int, counted: Mapping[SiloId, int]) -> None:
        """The next round is t; `counted` says of which round each silo's update was counted last."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """One method on one federation, in one folder."""

    folder: Path
    method: Method
    model: ModelSettings
    seed: int
    participation: Participation
    evaluation: Evaluation = field(default_factory=Evaluation)
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    privacy: Privacy = field(default_factory=Privacy)
    personal: tuple[PersonalModel, ...] = ()
    expected: int | None = None
    """How many silos there are, where they come and go; by default those of the federation's information."""
    newcomers: tuple[SiloId, ...] = ()
    """Silos that take no part, and are measured in the end."""

    @property
    def info(self) -> FederationInfo:
        """The silos, without their data."""
        raise NotImplementedError

    @property
    def complete(self) -> Method:
        """The method with its calibration and decisions around it."""
        return self.uncertainty.around(self.privacy.around(self.method, self.asked))

    @property
    def asked(self) -> int:
        """How many silos a round asks, if all are there."""
        return self.participation.count(self.expected or len(self.info) - len(self.newcomers))

    @property
    def participants(self) -> Sequence[SiloId]:
        """The silos that take part, in the order of the federation's information."""
        names = self.info.names
        return [name for name in names if name not in self.newcomers] if self.newcomers else names

    @property
    def own_models(self) -> dict[SiloId, ModelSettings]:
        """The architecture of each silo's own model; empty unless the method has such models."""
        return assign(self.personal, self.model, self.info.names) if self.method.personal else {}

    @property
    def measured(self) -> list[SiloId]:
        """The participants that are evaluated: all, or as many as the configuration says, the same ones every time."""
        count, names = self.evaluation.silos, self.participants
        if count is None or count >= len(names):
            return list(names)
        chosen = torch.randperm(len(names), generator=torch.Generator().manual_seed(key(self.seed, "measured")))[:count]
        return [names[i] for i in sorted(chosen.tolist())]

    def build(self) -> nn.Module:
        """The method's module with the weights that the seed gives."""
        model = build_model(self.model, self.info.shape, len(self.info.classes), self.seed)
        with seeded(self.seed, "build"):
            return workspace(self.method.build(model))

    def build_personal(self) -> dict[SiloId, nn.Module]:
        """The module for each silo's own model, one for all silos of an architecture; empty if none has one."""
        built: dict[ModelSettings, nn.Module] = {}
        for settings in self.own_models.values():
            if settings not in built:
                model = build_model(settings, self.info.shape, len(self.info.classes), self.seed)
                built[settings] = workspace(model)
        return {silo: built[settings] for silo, settings in self.own_models.items()}

    def executor_of(self, silos: Mapping[SiloId, Silo], names: Sequence[SiloId], states: SiloStore) -> Executor:
        """Where these silos work; `names` are theirs."""
        return Executor(
            Evaluated(self.complete), self.build(), silos, states, self.seed, self.build_personal(), names=names
        )

    def engine(self) -> AbstractContextManager[Engine]:
        """Whatever carries out the rounds."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write what is known before the first round."""

    def check(self) -> None:
        """Raises ConfigurationError for what cannot be run, before anything is."""
        if self.newcomers:
            self._check_newcomers()
        self.privacy.check()
        self.build_personal()
        assert self.complete
        self.build()

    def _check_newcomers(self) -> None:
        names = self.info.names
        if unknown := sorted({*self.newcomers} - {*names}):
            shown = f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            raise ConfigurationError(f"federation.newcomers: no silo {unknown[0]!r}, expected some of {shown}")
        if len(self.newcomers) == len(names):
            raise ConfigurationError(f"federation.newcomers names all {len(names)} silos, so that none takes part")
        if Decision.GLOBAL not in self.method.models and (kept := self._kept()):
            raise ConfigurationError(
                f"federation.newcomers does not fit {self.method.name!r}: {kept[0]} stays at its silo, so that one "
                "that takes no part has only a random one; choose a method that sends silos a whole model"
            )

    def _kept(self) -> list[str]:
        """Parameters that the server does not send, but for those of normalisation, which begin as the identity."""
        site = self.server_site()
        with seeded(self.seed, "init_server"):
            sent = self.method.broadcast(self.method.init_server(site)).get("model", {})
        parts = [(path, part) for path, part in site.module.named_modules() if not isinstance(part, _BatchNorm)]
        names = [
            f"{path}.{name}".lstrip(".") for path, part in parts for name, _ in part.named_parameters(recurse=False)
        ]
        return [name for name in names if name not in sent]

    def gallery(self) -> dict[str, Any] | None:
        """Inputs to show, where there are any to see."""
        return None

    def features(self) -> dict[str, Any] | None:
        """Where such inputs lie among each other, as the models see them."""
        return None

    def server_site(self) -> Site:
        none = Data(torch.zeros(0, *self.info.shape), torch.zeros(0, dtype=torch.long))
        return Site("server", none, none, none, self.build())
