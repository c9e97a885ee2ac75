"""A run wherever its silos are: a specification, a folder, and what carries out its rounds."""

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
from ..files.checkpoints import SiloStore
from ..files.reading import RUN
from ..files.schema import Features, Gallery, KeptState, StackedRecord
from ..files.schema.record import SCHEMA
from ..files.schema.run import GivenConfiguration, RunFile
from ..files.writing import write_record
from ..nn.frozen import FrozenEncoder
from ..nn.models import ModelSettings
from ..wrappers.evaluation import Evaluated
from .fingerprints import check_code, code_fingerprint, initial_model_fingerprint
from .inputs import PREPARATION
from .spec import RunSpec
from .spec_file import check_begun, check_initial_model, check_spec, described, read_run_file
from .user_code import codes_of

FIXED = (RUN, "splits.json", PREPARATION)


class Engine(Transport, Protocol):
    """A transport, and what a run asks of it beside rounds."""

    stacked: dict[str, StackedRecord]
    """Which works are carried out for many silos at once, as far as that is decided, see `engines.vectorization`."""

    @property
    def method(self) -> Method:
        """The run's method, with evaluation around it."""

    def begin(
        self, t: int, counted: Mapping[SiloId, int], kept: Mapping[SiloId, KeptState], rollbacks: int = 0
    ) -> None:
        """The next round is t; `counted` says of which round each silo's update was counted last, and `kept` which
        state each has, where silos do not keep books of their own. `rollbacks` is how often the run has gone back.
        """

    def kept(self) -> Sequence[KeptState]:
        """The states that silos have kept since this was asked last, by name; none of those with books of their own."""

    def keep(self, rounds: Sequence[int]) -> None:
        """The run may have to continue after these rounds: what belongs to them is not to be deleted."""

    def end_training(self) -> None:
        """No round of training follows: who had no part in any comes after the run, and is not asked any more."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """One specification on one federation, in one folder."""

    folder: Path
    spec: RunSpec
    engine_settings: EngineSettings = field(default_factory=EngineSettings)
    """Where and how fast it is computed: this decides no result."""
    devices: tuple[torch.device, ...] = (CPU,)
    """Where silos' works are computed, each worker's on one of them; predictions are on the first."""
    reset: tuple[SiloId, ...] = ()
    """Silos that begin afresh when the run continues, since their states were lost."""
    given: GivenConfiguration | None = None
    """What the user gave to the command that began the run."""

    @property
    def sync_seconds(self) -> float:
        """How often a checkpoint is waited for until it is on the disk."""
        return self.engine_settings.sync_seconds

    @property
    def workers(self) -> int:
        """Processes on this machine."""
        return self.engine_settings.workers

    @property
    def vectorized(self) -> Mode:
        """Whether silos are trained side by side, which the single-machine engine does."""
        return self.engine_settings.vectorized

    @property
    def keep_checkpoints(self) -> int:
        """How many of the last rounds of training can be gone back to; 1: none but the newest."""
        return self.engine_settings.kept_checkpoints

    @property
    def fixed(self) -> list[str]:
        """The files of the folder that do not change once the run has begun."""
        return [name for name in FIXED if (self.folder / name).exists()]

    @property
    def can_be_extended(self) -> bool:
        """Whether the states after its last round of training are kept, for more rounds of it."""
        return False

    @property
    def counts(self) -> Mapping[SiloId, int] | None:
        """The training examples that each silo says to have; None where that is known better than by what it says."""
        return None

    @property
    def info(self) -> FederationInfo:
        """The silos, without their data."""
        raise NotImplementedError

    @property
    def method(self) -> Method:
        return self.spec.method

    @property
    def complete_method(self) -> Method:
        """The method with privacy, calibration and decisions around it."""
        return self.spec.complete_method(len(self.info))

    @property
    def participants(self) -> Sequence[SiloId]:
        """The silos that take part, in the order of the federation's information."""
        return self.spec.participants(self.info.names)

    @property
    def measured(self) -> list[SiloId]:
        """The participants that are evaluated."""
        return self.spec.measured(self.info.names)

    @property
    def personal_settings(self) -> dict[SiloId, ModelSettings]:
        """The architecture of each silo's own model; empty unless the method has such models."""
        return self.spec.personal_settings(self.info.names)

    def executor_of(self, silos: Mapping[SiloId, Silo], names: Sequence[SiloId], states: SiloStore) -> Executor:
        """What carries out works at these silos, whose inputs are a frozen encoder's rows; `names` are theirs."""
        spec, info = self.spec, self.info
        own, method = spec.build_personal_models(info), Evaluated(self.complete_method, spec.known_metrics)
        return Executor(
            method, spec.build(info), silos, states, spec.seed, own, names=names,
            device=self.device,
        )  # fmt: skip

    @property
    def device(self) -> torch.device:
        """Where silos' works are computed if they are not spread."""
        return self.devices[0]

    @cached_property
    def predicts_on(self) -> torch.device:
        """Where predictions are computed: on the device, if it has float64."""
        return self.device if has_double(self.device) else CPU

    @cached_property
    def frozen_encoder(self) -> FrozenEncoder | None:
        """What stays as it is of the model, and every silo has."""
        return self.spec.frozen_encoder(self.info)

    def engine(self) -> AbstractContextManager[Engine]:
        """Whatever carries out the rounds."""
        raise NotImplementedError

    def states_at_hand(self) -> Sequence[KeptState]:
        """The last states of silos that keep books of their own on this machine, for predictions with the run."""
        return ()

    def description(self) -> RunFile:
        """What `run.json` holds of the run."""
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
        """Write what is known before the first round, if that is not done yet.

        Raises ConfigurationError if the folder's run is another one; RunError if code of one's own is or makes another
        than when the run began, or `init_from` is another one.
        """
        check_begun(self.folder)
        check_initial_model(self.folder, self.spec.init_from)
        if (record := read_run_file(self.folder)) is None:
            self.keep_description()
        else:
            check_spec(self.folder, record, self.spec)
            self.check_code()

    def check_code(self) -> None:
        """Raises RunError if code of one's own is or makes another than when the run began."""
        record = read_run_file(self.folder)
        if record is not None and record.code is not None:
            check_code(self.folder, record.code, self.spec.code_made(self.info), self.spec.method)

    def check(self) -> None:
        """Raises ConfigurationError or DataError for what cannot be run, before anything is."""
        self.spec.check(self.info)

    def gallery(self) -> Gallery | None:
        """Inputs to show, where there are any to see."""
        return None

    def features(self) -> Features | None:
        """Where such inputs lie among each other, as the models see them."""
        return None

    def server_context(self) -> SiloContext:
        """What code may see at the server, which has no data."""
        return self.spec.server_context(self.info)

    def first_state(self, context: SiloContext) -> State:
        """The server's state before the first round, from its site."""
        return self.spec.init_server(self.info, context, self.complete_method)
