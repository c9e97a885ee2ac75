"""What a configuration consists of: frozen dataclasses whose fields are the keys, the defaults and the checks."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from ..core import ConfigurationError, ConfigurationErrors, Method
from ..core.devices import check_name as check_device
from ..core.errors import one_of, short_repr
from ..core.settings import MAX_COUNT, KeyPath, check_different, collected, dotted, frozen_settings, problems_of
from ..data.settings import DataSettings
from ..methods import METHODS
from ..methods.plugins import advice
from ..nn.models import ModelSettings, PersonalModel
from ..training.fit import Training
from ..wrappers.aggregation import Choice, Robust, ServerOptimizer
from ..wrappers.privacy import Privacy
from ..wrappers.uncertainty import Uncertainty

Seconds = Annotated[float, Field(gt=0, le=1e8)]
ELSEWHERE: dict[str, KeyPath] = {
    "rounds": ("rounds",),
    "training": ("training",),
    "mc_samples": ("uncertainty", "mc_samples"),
}
"""Fields of methods that a configuration has elsewhere than in `[method]`, and where."""
_READING = ContextVar("reading", default=False)
"""Whether configurations are only read, and not run."""


@contextmanager
def reading() -> Iterator[None]:
    """Within it, configurations may name methods that are not at hand: those of a plugin, for reports of their runs.

    What `[method]` says of such a one is taken as it is written, and it cannot be built.
    """
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


def is_stranger(name: object) -> bool:
    """Whether a name is of a method that is not at hand, where configurations are only read."""
    return _READING.get() and isinstance(name, str) and name not in METHODS and bool(re.fullmatch(r"[a-z]\w*", name))


@frozen_settings
class MethodSettings:
    """A federated method and its own hyperparameters."""

    name: str
    """The method, as `caveat list methods` lists it."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Every hyperparameter of the method; those not given get the method's defaults."""

    def __post_init__(self) -> None:
        if is_stranger(self.name):
            return
        method = _construct(self.name, self.parameters)
        # Frozen for everyone else; equality and `dump` need the defaults spelled out.
        object.__setattr__(self, "parameters", {key: getattr(method, key) for key in method_keys(self.name)})


@collected
def _of_table(table: object) -> object:
    """A `[method]`, in which hyperparameters stand beside the name, as settings. Raises ValidationError."""
    if isinstance(table, MethodSettings):
        return table
    if not isinstance(table, dict):
        raise ConfigurationError("method is a section: set its keys, for instance method.name", "method.name")
    if "name" not in table:
        raise ConfigurationError(f"method.name is missing{one_of('', sorted(METHODS))}", "method.name")
    name, parameters = table["name"], {key: value for key, value in table.items() if key != "name"}
    check_name(name, "method.name")
    if strange := [key for key in parameters if key in ELSEWHERE]:
        raise ConfigurationErrors([
            ConfigurationError(f"{{key}} is no key; did you mean {dotted(ELSEWHERE[key])}?", f"method.{key}")
            for key in strange
        ])  # fmt: skip
    if not is_stranger(name):
        TypeAdapter(method_class(name)).validate_json(json.dumps(parameters), strict=True)
    return MethodSettings(name, parameters)


@frozen_settings
class Evaluation:
    """What is measured while a run goes on; the last round is measured on every split anyway."""

    every: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Rounds between two evaluations."""
    splits: tuple[Literal["validation", "test"], ...] = ("validation",)
    """The splits to measure, of validation and test; nothing is ever decided on test."""
    n_silos: Annotated[int, Field(ge=1)] | None = None
    """How many silos are measured, the same ones every time (all by default)."""
    early_stopping_patience: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Training ends after so many evaluations in a row in which the validation loss, the mean over silos, was no lower
    than before; the model is the last one, not the best (never by default)."""
    target_sensitivity: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Two classes: the threshold that sensitivity and specificity are at is the highest that a new input of the
    positive class reaches with at least this probability. By default it is where their sum is largest (Youden's J). It
    is chosen on calibration splits, and changes no prediction."""
    metrics: tuple[str, ...] = ()
    """single_machine: metrics of one's own on test splits, by the names under which a file of --plugin registers them
    with @caveat.metric; silos compute them."""

    def __post_init__(self) -> None:
        check_different(self.splits, "evaluation.splits")
        check_different(self.metrics, "evaluation.metrics")
        if self.early_stopping_patience is not None and "validation" not in self.splits:
            raise ConfigurationError(
                f"evaluation.early_stopping_patience = {self.early_stopping_patience} needs 'validation' among "
                f"evaluation.splits",
                "evaluation.early_stopping_patience",
            )


@frozen_settings
class Federation:
    """Who takes part in a round, and how far one silo can move it."""

    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the silos that a round asks."""
    min_silos: Annotated[int, Field(ge=1)] = 1
    """A round asks at least this many silos."""
    robust: Choice = "bound"
    """What is done about silos that lie, see docs/byzantine.md. bound: an update of more than four times the usual norm
    is scaled down to that; median, trimmed_mean, geometric_median or krum in place of the mean, every silo counting
    once; off."""
    max_byzantine: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Assumed maximum number of malicious silos per round, for the robust aggregation rules (1 by default)."""
    newcomers: tuple[str, ...] = ()
    """single_machine: silos that take no part. Their test splits are measured in the end, with what a silo has that
    joins then: the federation's model, and where parts of it stay at silos, these as they begin."""
    min_available_silos: Annotated[int, Field(ge=1)] | None = None
    """flower: silos that are waited for before the first round, for `start_timeout` seconds; then a quorum will do (by
    default as many as that). What classes and columns there are is agreed on by them."""
    quorum: Annotated[int, Field(ge=1)] | None = None
    """flower: silos without whose replies a round does not end (1 by default)."""
    round_timeout: Seconds | None = None
    """flower: time limit of a round in seconds; silos that answer later are left out of the round (600 by default)."""
    start_timeout: Seconds | None = None
    """flower: seconds after the deadline, and before the first round, that the run waits for silos (600 by default)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "newcomers", tuple(dict.fromkeys(self.newcomers)))
        Robust(self.robust, self.max_byzantine)
        if (self.min_available_silos or self.quorum or 1) < (self.quorum or 1):
            raise ConfigurationError(
                f"federation.min_available_silos = {self.min_available_silos}, expected at least federation.quorum = "
                f"{self.quorum}",
                "federation.min_available_silos",
            )


ENGINES: Mapping[tuple[str, str], tuple[str, str]] = {
    **{
        ("federation", key): ("flower", "")
        for key in ("min_available_silos", "quorum", "round_timeout", "start_timeout")
    },
    **{("engine", key): ("single_machine", "") for key in ("workers", "sync_seconds", "vectorized")},
    ("evaluation", "metrics"): ("single_machine", ": a federation on Flower sends no code to silos"),
    ("federation", "newcomers"): ("single_machine", ": whoever joins a federation on Flower takes part"),
}
"""The keys that only one engine reads: which one, and why, where that is not plain."""


@frozen_settings
class EngineSettings:
    """Where the work of the silos is computed."""

    name: Literal["single_machine", "flower"] = "single_machine"
    """single_machine: processes on this machine; flower: wherever the silos are, see `caveat flower init`."""
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """single_machine: processes, one thread each; the result does not depend on their number."""
    device: str = "cpu"
    """Where silos train and predict: cpu; cuda, cuda:1 (one of several) or mps; or auto, the first GPU if there is one.
    A GPU repeats its results bit by bit; in their last digits they are others than the CPU's. flower: simulations."""
    sync_seconds: Annotated[float, Field(ge=0)] = 10.0
    """single_machine: a checkpoint is made after every round; once in so many seconds the run waits until one is on the
    disk, so that a power cut takes no more than that. A process that is killed loses no completed round."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=100)] | None = None
    """How many of the last rounds of training `caveat rollback` can go back to: flower: 5 by default; single_machine:
    1, the newest alone. Each takes a copy of the server's state, and one of each silo's own state at the silo."""
    vectorized: Literal["off", "auto", "on"] = "off"
    """single_machine: silos of one architecture are trained side by side, as one batched model: off; auto, for 16 silos
    or more and small steps of training; on, wherever it comes to the same. Numbers differ by rounding."""

    def __post_init__(self) -> None:
        check_device(self.device)

    @property
    def kept_checkpoints(self) -> int:
        """How many of the last rounds of training can be gone back to."""
        return self.keep_checkpoints or (5 if self.name == "flower" else 1)


@frozen_settings
class Config:
    """Everything that decides what a run computes."""

    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Random seed: sets the splits, initial weights, batch order and dropout."""
    rounds: Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)] = 20
    """Rounds of the method; a method that extends itself may add more."""
    init_from: str | None = None
    """The folder of a finished run with whose model this one's begins; what a method keeps at silos begins as ever."""
    baselines: tuple[str, ...] = ()
    """Baselines: methods trained on the same data for the same number of rounds. A method that adds rounds itself may
    take more."""
    personal: tuple[PersonalModel, ...] = ()
    """Architectures of the silos' own models, for methods that have such models: keys as in [model], and `silos` to
    name whose it is. Entries without `silos` go to the others in turn; by default all are as in [model]."""
    data: DataSettings = Field(default_factory=DataSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    method: Annotated[MethodSettings, BeforeValidator(_of_table)] = Field(kw_only=True)
    training: Training = Field(default_factory=Training)
    server: ServerOptimizer = Field(default_factory=ServerOptimizer)
    uncertainty: Uncertainty = Field(default_factory=Uncertainty)
    privacy: Privacy = Field(default_factory=Privacy)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    federation: Federation = Field(default_factory=Federation)
    engine: EngineSettings = Field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        for name in self.baselines:
            check_name(name, "baselines")
        others = dict.fromkeys(name for name in self.baselines if name != self.method.name)
        object.__setattr__(self, "baselines", tuple(others))
        self._check_engine()
        if not any(has_personal(name) or is_stranger(name) for name in (*others, self.method.name)):
            check_personal(method_class(self.method.name), self.personal)

    def _check_engine(self) -> None:
        """Raises ConfigurationError for keys that belong to another engine, and for a device that is not silos' own."""
        problems = []
        for (section, key), (engine, why) in ENGINES.items():
            settings = getattr(self, section)
            value = getattr(settings, key)
            if engine != self.engine.name and value != getattr(type(settings), key):
                written = list(value) if isinstance(value, tuple) else value
                text = (
                    f"{{key}} = {short_repr(written)} is ignored by engine {self.engine.name!r}; it belongs to "
                    f"{engine!r}"
                )
                problems.append(ConfigurationError(text + why, f"{section}.{key}"))
        if self.data.source == "on_site" and self.engine.device != EngineSettings.device:
            text = (
                f"{{key}} = {self.engine.device!r} is ignored where silos have data of their own; `device` in a silo's"
            )
            problems.append(ConfigurationError(f"{text} silo.toml says where it computes", "engine.device"))
        if problems:
            raise ConfigurationErrors(problems)

    def build_method(self, name: str | None = None) -> Method:
        """The configured method; or another one with its own defaults and the same rounds, training and MC samples.

        Raises ConfigurationError if its hyperparameters cannot be combined.
        """
        own, training = self.method.parameters, self.training
        if name not in (None, self.method.name):
            own, training = {}, dataclasses.replace(training, **own_training(name, training.optimizer))
        name = name or self.method.name
        shared = {"rounds": self.rounds, "training": training, "mc_samples": self.uncertainty.mc_samples}
        fields = {field.name for field in dataclasses.fields(method_class(name))}
        return _construct(name, own | {key: value for key, value in shared.items() if key in fields})


def method_class(name: str) -> Any:  # both a dataclass and a Method: no one type says so
    return METHODS[name]


def method_keys(name: str) -> list[str]:
    """The hyperparameters of a method that `[method]` holds."""
    return [field.name for field in dataclasses.fields(method_class(name)) if field.name not in ELSEWHERE]


def check_name(name: object, key: str) -> None:
    """Raises ConfigurationError unless there is a method of that name."""
    if is_stranger(name):
        return
    if not isinstance(name, str) or name not in METHODS:
        also = f"; {advice(name)}" if isinstance(name, str) and name.isidentifier() else ""
        raise ConfigurationError(f"{key} = {name!r}: no such method{one_of(str(name), sorted(METHODS))}{also}", key)


def has_personal(name: object) -> bool:
    """Whether silos have models of their own architecture in the method of that name."""
    return isinstance(name, str) and name in METHODS and METHODS[name].personal


def check_personal(method: Method | type[Method], personal: Sequence[PersonalModel]) -> None:
    """Raises ConfigurationError if models are given for silos that have none of their own."""
    if personal and not method.personal:
        owners = [name for name, other in METHODS.items() if other.personal]
        raise ConfigurationError(
            "personal is ignored by this method, whose silos have no model of another architecture; it belongs to "
            f"{', '.join(owners)}",
            "personal",
        )


def own_training(name: object, optimizer: object = None) -> dict[str, Any]:
    """What a method's default training has different from everyone's: its optimiser, and the learning rate for that.

    Nothing if there is no such method, or if its optimiser is the one given already: its rate is then fit for it.
    """
    if not isinstance(name, str) or name not in METHODS:
        return {}
    own, usual = getattr(method_class(name), "training", None), dataclasses.asdict(Training())
    found = {key: value for key, value in vars(own or Training()).items() if key in usual and value != usual[key]}
    return {} if optimizer is not None and found.get("optimizer") == optimizer else found


def _construct(name: str, values: Mapping[str, Any]) -> Method:
    check_name(name, "method.name")
    try:
        method: Method = method_class(name)(**values)
    except ConfigurationError as error:
        problems = problems_of(error, ("method",))
        raise ConfigurationErrors([ConfigurationError(text, dotted(path)) for path, text in problems]) from None
    return method
