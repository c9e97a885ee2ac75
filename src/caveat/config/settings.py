"""The keys of a configuration: frozen dataclasses whose fields define keys, defaults and checks."""

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
from ..methods.plugins import SERVER_OPTIMIZERS, advice
from ..nn.models import ModelSettings, PersonalModel
from ..training.fit import Training
from ..wrappers.aggregation import Choice, Robust
from ..wrappers.privacy import Privacy
from ..wrappers.server_optimizers import ServerOptimizer
from ..wrappers.uncertainty_settings import Uncertainty

Seconds = Annotated[float, Field(gt=0, le=1e8)]
ELSEWHERE: dict[str, KeyPath] = {
    "rounds": ("rounds",),
    "training": ("training",),
    "mc_samples": ("uncertainty", "mc_samples"),
}
"""Fields of methods that a configuration sets outside of `[method]`, and the keys that set them."""
_READING = ContextVar("reading", default=False)
"""Whether configurations are only read for reports, and not to run them."""


@contextmanager
def reading() -> Iterator[None]:
    """Allow configurations to name methods that are not installed, for reports of runs with plugins. The `[method]`
    section of such a method is not checked, and the method cannot be built."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


def is_unavailable(name: object) -> bool:
    """Return whether a name may be that of a method that is not installed, while configurations are only read."""
    return _READING.get() and isinstance(name, str) and name not in METHODS and bool(re.fullmatch(r"[a-z]\w*", name))


@frozen_settings
class MethodSettings:
    """A federated method and its hyperparameters."""

    name: str
    """Name of the method; see `caveat list methods`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """All hyperparameters of the method; missing ones get the method's defaults."""

    def __post_init__(self) -> None:
        if is_unavailable(self.name):
            return
        method = _construct(self.name, self.parameters)
        # Settings are frozen; equality and `dump` need all defaults.
        object.__setattr__(self, "parameters", {key: getattr(method, key) for key in method_keys(self.name)})


@collected
def _of_table(table: object) -> object:
    """Return a `[method]` section, which has hyperparameters next to the name, as settings. Raises ValidationError."""
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
            ConfigurationError(f"unknown key {{key}}; did you mean {dotted(ELSEWHERE[key])}?", f"method.{key}")
            for key in strange
        ])  # fmt: skip
    if not is_unavailable(name):
        TypeAdapter(method_class(name)).validate_json(json.dumps(parameters), strict=True)
    return MethodSettings(name, parameters)


@frozen_settings
class Evaluation:
    """Evaluation during a run. The last round is evaluated on all splits."""

    every: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Number of rounds between evaluations."""
    splits: tuple[Literal["validation", "test"], ...] = ("validation",)
    """Splits to evaluate: validation, test or both. No decision depends on the test split."""
    n_silos: Annotated[int, Field(ge=1)] | None = None
    """Number of silos that are evaluated, always the same ones (all by default)."""
    early_stopping_patience: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Early stopping (off by default): training ends after this number of consecutive evaluations without a lower
    validation loss (mean over silos). The run then uses the model of the last round, not the best model."""
    target_sensitivity: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Two classes: sensitivity and specificity are reported at the highest threshold that a new input of the positive
    class reaches with at least this probability. By default, the threshold maximizes their sum (Youden's J). It is
    chosen on calibration splits and does not change predictions."""
    metrics: tuple[str, ...] = ()
    """single_machine: names of custom metrics on test splits. A file or module of --plugin registers these metrics with
    @caveat.metric."""

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
    """Participation of silos, and robustness to faulty or malicious silos."""

    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the silos that take part in a round."""
    min_silos: Annotated[int, Field(ge=1)] = 1
    """Minimum number of silos that take part in a round."""
    robust: Choice = "bound"
    """Robustness to malicious silos (docs/how-to/byzantine.md). bound (norm bounding): scale updates down to four times
    the usual norm; median, trimmed_mean, geometric_median or krum: aggregate by this rule instead of the mean, with
    equal weights for all silos; off: aggregate by the mean."""
    max_byzantine: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Assumed maximum number of malicious silos per round, for the robust aggregation rules (1 by default)."""
    secure: bool = False
    """Secure aggregation: in all rounds in which sums suffice, and in evaluations, the server learns only sums over
    silos. It needs at least three silos, and robust = "off". single_machine: the results are the same, but nothing is
    protected."""
    newcomers: tuple[str, ...] = ()
    """single_machine: held-out silos, which take no part in training. They are evaluated at the end with the global
    model. Parts of the model that stay at silos then have their initial values."""
    min_available_silos: Annotated[int, Field(ge=1)] | None = None
    """flower: number of silos to wait for before the first round (default: the quorum). After `start_timeout` seconds,
    the quorum suffices. The silos that are then available agree on classes and columns."""
    quorum: Annotated[int, Field(ge=1)] | None = None
    """flower: minimum number of replies that a round needs (1 by default)."""
    round_timeout: Seconds | None = None
    """flower: time limit of a round in seconds. Silos that answer later are excluded from the round (600 by
    default)."""
    start_timeout: Seconds | None = None
    """flower: seconds to wait for silos before the first round, and for missing replies after a round's time limit (600
    by default)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "newcomers", tuple(dict.fromkeys(self.newcomers)))
        Robust(self.robust, self.max_byzantine)
        if self.secure and self.robust != "off":
            raise ConfigurationError(
                f"federation.secure = true and federation.robust = {self.robust!r} cannot be combined: rules against "
                "malicious silos need single updates, which secure aggregation hides. Set robust = 'off' (any silo can "
                "then distort the model unnoticed), or secure = false (the server then sees each silo's update)",
                "federation.secure",
            )
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
    ("evaluation", "metrics"): ("single_machine", ": federations on Flower send no code to silos"),
    ("federation", "newcomers"): ("single_machine", ": all silos of a federation on Flower take part"),
}
"""The keys that only one engine uses, with the name of the engine and, if it is not obvious, the reason."""


@frozen_settings
class EngineSettings:
    """Where and how the tasks of silos are computed."""

    name: Literal["single_machine", "flower"] = "single_machine"
    """single_machine: in processes on this machine; flower: on the silos' machines (see `caveat flower init`)."""
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """single_machine: number of worker processes with one thread each, which does not change the results."""
    device: str = "cpu"
    """Device on which silos train and predict: cpu, cuda, cuda:1 (one of several GPUs), mps, or auto (the first GPU if
    there is one). Results on a GPU are bitwise reproducible, but differ from results on the CPU in rounding and dropout
    masks. flower: only for simulations."""
    sync_seconds: Annotated[float, Field(ge=0)] = 10.0
    """single_machine: interval in seconds at which caveat waits until a checkpoint is on disk. A power failure loses at
    most the progress of this interval. A checkpoint is written after every round, so a killed process does not lose a
    completed round."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=100)] | None = None
    """Number of recent training rounds that `caveat rollback` can go back to. flower: 5 by default; single_machine: 1
    by default, the newest round. Each round needs a copy of the server's state, and of each silo's state at the
    silo."""
    vectorized: Literal["off", "auto", "on"] = "off"
    """single_machine: whether to train silos of one architecture as one batched model. off: never; auto: for at least
    16 silos and small training steps; on: wherever results are equal up to rounding."""

    def __post_init__(self) -> None:
        check_device(self.device)

    @property
    def kept_checkpoints(self) -> int:
        """Number of recent training rounds with checkpoints."""
        return self.keep_checkpoints or (5 if self.name == "flower" else 1)


@frozen_settings
class Config:
    """All settings of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Random seed for the splits, initial weights, batch order and dropout."""
    rounds: Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)] = 20
    """Number of training rounds. Some methods add more rounds."""
    init_from: str | None = None
    """Folder of a finished run whose model initializes the model of this run. States of silos are initialized as
    usual."""
    baselines: tuple[str, ...] = ()
    """Methods to train for comparison, on the same data for the same number of rounds. Methods that add rounds may take
    more."""
    personal: tuple[PersonalModel, ...] = ()
    """Architectures of personalized models, for methods with such models. Each has the keys of [model], and `silos`,
    the names of the silos that use it. Architectures without `silos` are assigned to the other silos in turn. By
    default, all silos use the architecture in [model]."""
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
        if not any(has_personal(name) or is_unavailable(name) for name in (*others, self.method.name)):
            check_personal(method_class(self.method.name), self.personal)

    def _check_engine(self) -> None:
        """Raise ConfigurationError for keys that only another engine uses, and for a device if silos set their own."""
        problems = []
        for (section, key), (engine, why) in ENGINES.items():
            settings = getattr(self, section)
            value = getattr(settings, key)
            if engine != self.engine.name and value != getattr(type(settings), key):
                written = list(value) if isinstance(value, tuple) else value
                text = f"{{key}} = {short_repr(written)} is not used by engine {self.engine.name!r}, only by {engine!r}"
                problems.append(ConfigurationError(text + why, f"{section}.{key}"))
        if self.data.source == "on_site" and self.engine.device != EngineSettings.device:
            text = f"{{key}} = {self.engine.device!r} has no effect if silos read their own data; "
            text += "set `device` in silo.toml"
            problems.append(ConfigurationError(text, "engine.device"))
        if problems:
            raise ConfigurationErrors(problems)

    def build_method(self, name: str | None = None) -> Method:
        """Return the configured method, or the method `name` with its default hyperparameters and the same rounds,
        training and MC samples. Raises ConfigurationError if the hyperparameters cannot be combined."""
        own, training = self.method.parameters, self.training
        if name not in (None, self.method.name):
            own, training = {}, dataclasses.replace(training, **own_training(name, training.optimizer))
        name = name or self.method.name
        shared = {"rounds": self.rounds, "training": training, "mc_samples": self.uncertainty.mc_samples}
        fields = {field.name for field in dataclasses.fields(method_class(name))}
        return _construct(name, own | {key: value for key, value in shared.items() if key in fields})


def method_class(name: str) -> Any:  # both a dataclass and a Method, which no type expresses
    return METHODS[name]


def method_keys(name: str) -> list[str]:
    """Return the hyperparameters of a method that belong to `[method]`."""
    return [field.name for field in dataclasses.fields(method_class(name)) if field.name not in ELSEWHERE]


def check_name(name: object, key: str) -> None:
    """Raise ConfigurationError unless there is a method with that name."""
    if is_unavailable(name):
        return
    if not isinstance(name, str) or name not in METHODS:
        also = f"; {advice(name)}" if isinstance(name, str) and name.isidentifier() else ""
        others = "" if str(name).lower() in SERVER_OPTIMIZERS else one_of(str(name), sorted(METHODS))
        raise ConfigurationError(f"{key} = {name!r}: no such method{others}{also}", key)


def has_personal(name: object) -> bool:
    """Return whether the method with that name has personalized models."""
    return isinstance(name, str) and name in METHODS and METHODS[name].personal


def check_personal(method: Method | type[Method], personal: Sequence[PersonalModel]) -> None:
    """Raise ConfigurationError if personalized models are configured for a method without them."""
    if personal and not method.personal:
        owners = [name for name, other in METHODS.items() if other.personal]
        raise ConfigurationError(
            f"personal is not used by this method, which has no personalized models; it belongs to {', '.join(owners)}",
            "personal",
        )


def own_training(name: object, optimizer: object = None) -> dict[str, Any]:
    """Return the settings of a method's default training that differ from the general defaults, such as the optimizer
    and the learning rate. Return none for an unknown method, and if its optimizer equals `optimizer`."""
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
