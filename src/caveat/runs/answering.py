"""Predictions of a finished run for new inputs, without the silos' data."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..core import (
    Answers,
    ConfigurationError,
    Data,
    DataError,
    Payload,
    Prediction,
    Silo,
    SiloContext,
    SiloId,
    State,
    Tensors,
)
from ..core.devices import brought_all, deterministic, free_memory, home
from ..core.quantity import Quantity
from ..core.silo import SPLITS, FederationInfo, LateData, LazyMapping
from ..data import Preparation, Silos
from ..engines.executor import Executor
from ..engines.silos_on_device import SHARE, one_thread, placed_data, placed_inputs
from ..files import STATES, Manifest, SiloStore, manifest_of, read, read_kept, read_payload
from ..files.schema import KeptState, ModelFile, Summary
from ..nn.frozen import Whole
from ..nn.model_checks import check_ids
from ..training.modules import on_device
from ..wrappers.base import find
from ..wrappers.ensembles import SeveralModels
from ..wrappers.quantities import UNIT
from .base import BaseRun
from .frozen_features import SilosWithFeatures, features_of
from .initial_model import MODEL

Predicted = TypeVar("Predicted", Prediction, Answers, Tensors)
ERRORS = (ConfigurationError, DataError, OSError)
"""Errors raised when reading data that have been moved."""


class AtSilo(NamedTuple):
    """Everything that predictions at a silo need, except the model inputs."""

    down: Payload
    """The broadcast to all silos."""
    state: State
    """State of the silo."""
    context: SiloContext
    """Workspaces, and the silo's data if available."""


def placed(at: AtSilo, device: torch.device) -> AtSilo:
    """Return `at` with its tensors on a device; the silo's data are moved only on access."""
    down, state, context = at
    train, validation, calibration = (
        LateData.of(partial(placed_data, part, device))
        for part in (context.train, context.validation, context.calibration)
    )
    own = None if context.own is None else on_device(context.own, device)
    return AtSilo(
        brought_all(down, device), brought_all(state, device),
        replace(
            context, module=on_device(context.module, device), own=own, train=train, validation=validation,
            calibration=calibration,
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AnsweringRun(BaseRun):
    """A run in a folder of this machine that can predict with the models of its silos."""

    @property
    def preparation(self) -> Preparation:
        """Preprocessing fitted on the training data: how to read new inputs and turn them back into images."""
        raise NotImplementedError

    def executor(self) -> Executor:
        """Return the executor with the silos' models and states."""
        raise NotImplementedError

    @property
    def manifest(self) -> Manifest:
        """Checksums of the files of the finished run."""
        return manifest_of(self.folder)

    @property
    def positive(self) -> str | None:
        """Positive class of two, for metrics; None for the second class, and for more than two classes."""
        found = read(self.folder / "summary.json", Summary).classification
        return (found.positive if found is not None else None) or None

    def kept(self, silo: SiloId, t: int) -> KeptState | None:
        """Return the final state of a silo; None if the folder has no state of it."""
        return self._states.get(silo)

    @cached_property
    def _states(self) -> dict[SiloId, KeptState]:
        return read_kept(self.folder / STATES)

    def predictor(self, silo: SiloId) -> Callable[..., Prediction]:
        """Return a function from inputs (N, ...), normalized like the silo's, and (N,) subgroups, to its Prediction."""
        return self._predicting(silo, self.complete_method.predict)

    def answers(self, silo: SiloId) -> Callable[..., Answers]:
        """Return a function from the arguments of `predictor`'s to the predictions of each available model."""
        return self._predicting(silo, self.complete_method.answer)

    def module(self, silo: SiloId) -> nn.Module:
        """Return a copy of a silo's network with its weights, for inputs (N, ...) as `predictor` takes. Raises
        ConfigurationError for an ensemble, which has several networks."""
        if find(self.complete_method, SeveralModels) is not None:
            raise ConfigurationError(
                f"{self.folder}: the model is an ensemble of several networks, not a single network"
            )
        down, state, context = self.at(silo)
        with one_thread():
            *_, (_, module) = self.method.loaded(down, state, context)
        own, encoder = deepcopy(module).eval(), self.frozen_encoder
        return own if encoder is None else Whole(encoder, own)

    def at(self, silo: SiloId) -> AtSilo:
        """Read everything that predictions at a silo need. Raises ConfigurationError for an unknown silo, DataError for
        damaged files."""
        executor = self.executor()
        self.manifest.check(MODEL, "model/model.json", STATES)
        down = read_payload(self.folder / MODEL)
        t = read(self.folder / "model" / "model.json", ModelFile).t
        if silo not in executor.silos:
            known = ", ".join(executor.silos)
            raise ConfigurationError(f"no silo {silo!r} in {self.folder}, expected one of {known}")
        with one_thread():
            state = executor.state(silo, self.kept(silo, t))
        return AtSilo(down, state, executor.context(silo))

    def target(self, silo: SiloId) -> Quantity | None:
        """Return the quantity to predict, with its bars in the unit of a silo's targets; None for classes."""
        found = self.preparation.target
        return found.placed(self.at(silo).state.get(UNIT, {})) if found and found.standardized else found

    def _predicting(
        self, silo: SiloId, ask: Callable[[Payload, State, SiloContext, Tensor], Predicted]
    ) -> Callable[..., Predicted]:
        at, encoder, first = self.at(silo), self.frozen_encoder, self.spec.first_module(self.info)
        device = self.predicts_on
        there = at if device.type == "cpu" else placed(at, device)

        def predict(x: Tensor, subgroup: Tensor | None = None) -> Predicted:
            asked = there._replace(context=replace(there.context, subgroup=subgroup))
            if not x.is_floating_point():
                check_ids(first, x, f"inputs for silo {silo!r}")
            with one_thread(), deterministic(device):
                x = x if encoder is None else features_of(encoder, x, keep=False, device=device)
                if device.type == "cpu":
                    return ask(*asked, x)
                # Inputs too large for the free memory of the device are moved in parts.
                free = free_memory(device)
                return home(ask(*asked, placed_inputs(x, device, whole=free is None or x.nbytes <= SHARE * free)))

        return predict


@dataclass(frozen=True, kw_only=True)
class KeptRun(AnsweringRun):
    """A run from its folder, without the silos' data."""

    prepares: Preparation
    read_silos: Callable[[], Silos]
    """Reads the data. Raises DataError if they are missing."""

    @property
    def preparation(self) -> Preparation:
        return self.prepares

    @cached_property
    def silos(self) -> Silos:
        try:
            return self._read
        except ERRORS as error:
            text = f"{self.folder}: the data of the run, which predictions do not need, cannot be read: {error}"
            raise DataError(text) from error

    @cached_property
    def _read(self) -> Silos:
        return self.read_silos()

    @cached_property
    def info(self) -> FederationInfo:
        prepares, silos = self.prepares, late_silos(self.prepares, self._silo)
        return FederationInfo.of(
            silos, prepares.names, prepares.shape, prepares.classes, prepares.dtype, subgroups=prepares.subgroup_names,
            target=prepares.target,
        )  # fmt: skip

    def executor(self) -> Executor:
        silos = late_silos(self.prepares, self._silo)
        return self.executor_of(silos, self.prepares.names, SiloStore(self.folder / "state" / "silos"))

    def _silo(self, name: SiloId) -> Silo:
        """Return a silo with its data, for predictions that need the data.

        Raises DataError if they cannot be read.
        """
        try:
            silos: Mapping[SiloId, Silo] = self._read.by_name
        except ERRORS as error:
            raise DataError(
                f"{self.folder}: silo {name!r} did not take part in the rounds after training, so its predictions "
                f"need its data, which cannot be read: {error}"
            ) from error
        return (
            silos[name]
            if self.frozen_encoder is None
            else SilosWithFeatures(silos, self.frozen_encoder, self.predicts_on)[name]
        )


def late_silos(prepares: Preparation, read: Callable[[SiloId], Silo]) -> Mapping[SiloId, Silo]:
    """Return all silos by name; their splits and targets are read on access."""

    def split_of(name: SiloId, split: str) -> Data:
        found: Data = getattr(read(name), split)
        return found

    def silo(name: SiloId) -> Silo:
        train, validation, calibration, test = (LateData.of(partial(split_of, name, split)) for split in SPLITS)
        values = LazyMapping(SPLITS[:-1] if prepares.target else (), lambda split: read(name).values[split])
        return Silo(name, "", train, validation, calibration, test, values=values)

    return LazyMapping(prepares.names, silo)
