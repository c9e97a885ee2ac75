"""The base of all runs: a specification, a folder, and an engine."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from ..config import EngineSettings
from ..core import Method, Silo, SiloContext, SiloId, State
from ..core.devices import CPU, has_double
from ..core.silo import FederationInfo
from ..engines.executor import Executor
from ..engines.rounds import Transport
from ..engines.vectorization import Mode
from ..files import RUN, SiloStore, write_record
from ..files.schema import SCHEMA, Features, Gallery, GivenConfiguration, KeptState, RunFile, VectorizedRecord
from ..nn.frozen import FrozenEncoder
from ..nn.models import ModelSettings
from .continuing_checks import check_begun, check_initial_model, check_spec
from .fingerprints import check_code, code_fingerprint, initial_model_fingerprint
from .spec import RunSpec
from .spec_file import described, read_run_file
from .stored_preparation import PREPARATION
from .user_code import codes_of

FIXED = (RUN, "splits.json", PREPARATION)


class Engine(Transport, Protocol):
    """A transport with further operations that a run needs."""

    vectorized: dict[str, VectorizedRecord]
    """The decisions so far on which tasks are batched over silos (see `engines.vectorization`)."""

    @property
    def method(self) -> Method:
        """The run's method, wrapped by evaluation."""

    def begin(
        self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState], rollbacks: int = 0
    ) -> None:
        """Start at round t. `counted` is the last round in which each silo's update was aggregated, `kept` the state of
        each silo, if the engine stores it, and `rollbacks` the number of rollbacks of the run."""

    def kept(self) -> Sequence[KeptState]:
        """Return the states that silos stored since the last call, by name, if the engine stores them."""

    def keep(self, rounds: Sequence[int]) -> None:
        """Keep everything that the run needs to continue after one of these rounds."""

    def end_training(self) -> None:
        """End training: silos that never took part in training are no longer asked."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """A run: one specification on one federation, in one folder."""

    folder: Path
    spec: RunSpec
    engine_settings: EngineSettings = field(default_factory=EngineSettings)
    """The place and speed of the computation, which do not affect results."""
    devices: tuple[torch.device, ...] = (CPU,)
    """Devices of client tasks, which workers take in turn; predictions use the first one."""
    reset: tuple[SiloId, ...] = ()
    """Silos that restart when the run continues, because their states were lost."""
    given: GivenConfiguration | None = None
    """The arguments of the command that started the run."""

    @property
    def sync_seconds(self) -> float:
        """Interval in seconds at which the run waits until a checkpoint is on disk."""
        return self.engine_settings.sync_seconds

    @property
    def workers(self) -> int:
        """Number of worker processes on this machine."""
        return self.engine_settings.workers

    @property
    def vectorized(self) -> Mode:
        """Whether silos are trained as one batched model."""
        return self.engine_settings.vectorized

    @property
    def keep_checkpoints(self) -> int:
        """Number of recent training rounds with checkpoints."""
        return self.engine_settings.kept_checkpoints

    @property
    def fixed(self) -> list[str]:
        """The files of the folder that do not change during the run."""
        return [name for name in FIXED if (self.folder / name).exists()]

    @property
    def can_be_extended(self) -> bool:
        """Whether the states after the last training round are kept, to extend the run by more rounds."""
        return False

    @property
    def counts(self) -> Mapping[SiloId, int] | None:
        """The reported training examples of each silo; None if they are known otherwise."""
        return None

    @property
    def info(self) -> FederationInfo:
        """The silos, without their data."""
        raise NotImplementedError

    @property
    def unusual(self) -> Sequence[str]:
        """Warnings about data on this machine."""
        return ()

    @property
    def method(self) -> Method:
        return self.spec.method

    @property
    def complete_method(self) -> Method:
        """The method wrapped by privacy, calibration and decisions."""
        return self.spec.complete_method(len(self.info), self.info.subgroups, self.info.target)

    @property
    def participants(self) -> Sequence[SiloId]:
        """The silos that take part, in the order of `info`."""
        return self.spec.participants(self.info.names)

    @property
    def measured(self) -> list[SiloId]:
        """The participants that are evaluated."""
        return self.spec.measured(self.info.names)

    @property
    def personal_settings(self) -> dict[SiloId, ModelSettings]:
        """The architecture of each silo's personalized model; empty unless the method has such models."""
        return self.spec.personal_settings(self.info.names)

    def executor_of(self, silos: Mapping[SiloId, Silo], names: Sequence[SiloId], states: SiloStore) -> Executor:
        """Return an executor at `silos`, called `names`; with a frozen encoder, their inputs are its features."""
        spec, info = self.spec, self.info
        own = spec.build_personal_models(info)
        method = spec.evaluated(self.complete_method, len(info.subgroups))
        return Executor(method, spec.build(info), silos, states, spec.seed, own, names=names, device=self.device)

    @property
    def device(self) -> torch.device:
        """The device of client tasks, if there is only one."""
        return self.devices[0]

    @cached_property
    def predicts_on(self) -> torch.device:
        """The device of predictions: the device of client tasks if it supports float64, or else the CPU."""
        return self.device if has_double(self.device) else CPU

    @cached_property
    def frozen_encoder(self) -> FrozenEncoder | None:
        """The frozen part of the model, which every silo has."""
        return self.spec.frozen_encoder(self.info)

    def engine(self) -> AbstractContextManager[Engine]:
        """Return the engine that runs the rounds."""
        raise NotImplementedError

    def states_at_hand(self) -> Sequence[KeptState]:
        """Return the last states that silos on this machine store themselves, for predictions with the run."""
        return ()

    def description(self) -> RunFile:
        """Return the contents of `run.json`."""
        spec, optional = self.spec, dict[str, Any]()
        if (code := code_fingerprint(spec.code_made(self.info), spec.method, codes_of(spec))) is not None:
            optional["code"] = code
        if self.given is not None:
            optional["given"] = self.given
        if spec.init_from is not None:
            optional["init_model"] = initial_model_fingerprint(spec.init_from)
        return RunFile(schema=SCHEMA, spec=described(spec), engine=vars(self.engine_settings), **optional)

    def keep_description(self) -> None:
        """Write `run.json`."""
        write_record(self.folder / RUN, self.description(), lasting=True)

    def prepare(self) -> None:
        """Write the files that are known before the first round, unless they exist.

        Raises ConfigurationError if the folder has another run, RunError if custom code or the model of `init_from` has
        changed since the run started.
        """
        check_begun(self.folder)
        check_initial_model(self.folder, self.spec.init_from)
        if (record := read_run_file(self.folder)) is None:
            self.keep_description()
        else:
            check_spec(self.folder, record, self.spec)
            self.check_code()

    def check_code(self) -> None:
        """Raise RunError if custom code has changed since the run started."""
        record = read_run_file(self.folder)
        if record is not None and record.code is not None:
            check_code(self.folder, record.code, self.spec.code_made(self.info), self.spec.method)

    def check(self) -> None:
        """Raise ConfigurationError or DataError for a run that cannot work, before anything runs."""
        self.spec.check(self.info)

    def gallery(self) -> Gallery | None:
        """Return example inputs for the report, if they can be shown."""
        return None

    def features(self) -> Features | None:
        """Return the positions of example inputs in feature space."""
        return None

    def server_context(self) -> SiloContext:
        """Return the context of code at the server, without data."""
        return self.spec.server_context(self.info)

    def first_state(self, context: SiloContext) -> State:
        """Return the server's state before the first round."""
        return self.spec.init_server(self.info, context, self.complete_method)
