"""The arguments of Python calls, which are checked like the keys of a configuration and become a specification."""

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

from ..config import Evaluation, Federation
from ..core import ConfigurationError, ConfigurationErrors, Method, SiloId
from ..core.errors import short_repr
from ..core.settings import check_seed, path_of
from ..data import Silos
from ..files import RUN, nothing_begun
from ..metrics.custom_metrics import Compute, given_metrics
from ..nn.custom_model import Make
from ..nn.models import ModelSettings, PersonalModel
from ..training.fit import Training
from ..wrappers.aggregation import Choice
from ..wrappers.privacy import Privacy
from ..wrappers.server_optimizers import ServerOptimizer
from ..wrappers.uncertainty_settings import Uncertainty
from .base import BaseRun
from .continuing_checks import check_files, check_spec
from .spec import RunSpec
from .spec_file import described, read_run_file
from .user_code import import_code

Function = TypeVar("Function", bound=Callable[..., Any])
Number = TypeVar("Number", int, float)

SECTIONS: tuple[type, ...] = (Federation, Evaluation)
"""Sections of a configuration whose keys are arguments of a call."""


class TrainingArguments(TypedDict, total=False):
    """Arguments of all Python calls that describe a run."""

    rounds: int | None
    training: Training | None
    model: ModelSettings | Make | str | None
    personal: Sequence[PersonalModel]
    init_from: str | Path | None
    participation: float
    min_silos: int
    robust: Choice
    max_byzantine: int | None
    secure: bool
    uncertainty: Uncertainty | None
    privacy: Privacy | None
    server: ServerOptimizer | None


class RunArguments(TrainingArguments, total=False):
    """Arguments of `caveat.run`."""

    seed: int
    newcomers: Sequence[SiloId]
    every: int
    splits: Sequence[str]
    n_silos: int | None
    early_stopping_patience: int | None
    target_sensitivity: float | None
    metrics: Mapping[str, Compute] | None


def with_arguments(arguments: type) -> Callable[[Function], Function]:
    """Show the keyword arguments of `**settings`, with their defaults, in `help` and editors."""

    def documented(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(name), annotation=hint)
            for name, hint in get_type_hints(arguments).items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return documented


def _default(name: str) -> object:
    fields = {each.name: each.default for cls in SECTIONS for each in dataclasses.fields(cls)}
    return fields.get(name, {"seed": 0, "personal": ()}.get(name))


def spec_of_call(
    silos: Silos, method: Method, arguments: Mapping[str, Any], known: type, function: str = "run"
) -> RunSpec:
    """Return the specification of a Python call. Raises ConfigurationError, or TypeError for an unknown argument."""
    if unknown := sorted(arguments.keys() - get_type_hints(known).keys()):
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    given = {name: value for name, value in arguments.items() if value is not None}
    model = _model(given.get("model"), silos)
    check_types(
        silos, method, model=(model, ModelSettings), training=(given.get("training"), Training),
        uncertainty=(given.get("uncertainty"), Uncertainty), privacy=(given.get("privacy"), Privacy),
        server=(given.get("server"), ServerOptimizer),
    )  # fmt: skip
    if isinstance(given.get("newcomers"), str):
        raise ConfigurationError(f"newcomers = {given['newcomers']!r}: expected a list of names")
    uncertainty, personal = given.get("uncertainty", Uncertainty()), given.get("personal", ())
    if isinstance(personal, str) or not all(isinstance(each, PersonalModel) for each in _items(personal)):
        raise ConfigurationError(
            f"personal = {short_repr(personal)}: expected a list of caveat.PersonalModel", "personal"
        )
    metrics = given_metrics(given.get("metrics", {}))
    arguments = {**arguments, "metrics": tuple(own.name for own in metrics)}
    with explained():
        return RunSpec(
            metrics=metrics,
            seed=whole(arguments.get("seed", 0)),
            federation=_section(Federation, arguments),
            evaluation=_section(Evaluation, arguments),
            method=with_samples(replaced(method, given, "rounds", "training"), uncertainty),
            model=model,
            uncertainty=uncertainty,
            privacy=given.get("privacy", Privacy()),
            server=given.get("server", ServerOptimizer()),
            personal=tuple(personal),
            init_from=str(path_of(given["init_from"], "init_from")) if "init_from" in given else None,
        )


def _model(given: Any, silos: Any) -> Any:
    """Return model settings for a name, custom code or a class; return other values unchanged."""
    if given is None:
        return ModelSettings(name="residual" if getattr(silos, "images", False) else "mlp")
    code = isinstance(given, str) and ":" in given
    if code:
        import_code(given)
    return ModelSettings(factory=given) if code or callable(given) else given


def _items(values: Any) -> tuple[Any, ...]:
    """Return the items of a list, or a tuple of the value itself."""
    return tuple(values) if isinstance(values, Sequence) else (values,)


def _section(cls: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a section of a configuration from the arguments that are its keys."""
    return cls(**{each.name: arguments[each.name] for each in dataclasses.fields(cls) if each.name in arguments})


def with_samples(method: Any, uncertainty: Uncertainty) -> Any:
    """Return the method with the MC samples of `uncertainty`, unless that is the default."""
    usual, own = Uncertainty().mc_samples, getattr(method, "mc_samples", None)
    if own is None or uncertainty.mc_samples in (usual, own):
        return method
    if own != usual:
        raise ConfigurationError(
            f"{method.name} has mc_samples = {own} and uncertainty.mc_samples = {uncertainty.mc_samples}; set only one",
            "uncertainty.mc_samples",
        )
    return dataclasses.replace(method, mc_samples=uncertainty.mc_samples)


@contextmanager
def explained() -> Iterator[None]:
    """Replace a ConfigurationError of settings within this context by one with the text and key of each problem."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationErrors([ConfigurationError(each.text, each.key) for each in error.problems]) from None


def check_types(silos: object, method: object, **settings: tuple[object, type]) -> None:
    """Raise ConfigurationError for arguments of wrong types; `settings` has values, or None, and their valid types."""
    if not isinstance(silos, Silos):
        raise ConfigurationError(
            f"silos has type {type(silos).__name__}, expected Silos, for example from caveat.data.from_arrays"
        )
    if not isinstance(method, Method):
        given = method.__name__ if isinstance(method, type) else repr(method)
        raise ConfigurationError(f"method = {given}: expected an object, such as caveat.FedAvg()")
    for name, (value, kind) in settings.items():
        if value is not None and not isinstance(value, kind):
            raise ConfigurationError(f"{name} = {value!r}: expected a caveat.{kind.__name__}")


def replaced(method: Any, given: Mapping[str, Any], *names: str) -> Any:
    """Return the method with the given fields replaced. Raises ConfigurationError for a field that it lacks."""
    changed = {name: given[name] for name in names if name in given}
    known = {field.name for field in dataclasses.fields(method)} if dataclasses.is_dataclass(method) else set()
    if unknown := sorted(changed.keys() - known):
        raise ConfigurationError(f"{unknown[0]} was passed, but {method.name!r} has no field with that name")
    return dataclasses.replace(method, **changed) if changed else method


def whole(seed: Any, called: str = "seed") -> int:
    """Return a seed as int, from Python's or NumPy's integers. Raises ConfigurationError for other values."""
    check_seed(seed, called)
    return operator.index(seed)


def listed(values: Any, read: Callable[[Any], Number], name: str) -> tuple[Number, ...]:
    """Return the converted values of an argument. Raises ConfigurationError if it is not a list of such values."""
    try:
        return tuple(read(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{name} = {short_repr(values)}: expected a list of numbers", name) from None


def check_folder(folder: Path) -> None:
    """Raise ConfigurationError unless a call's run can start, continue, or be finished in a folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"out = {str(folder)!r} is a file; expected a folder")
    check_files(folder, RUN)
    record = read_run_file(folder)
    if (folder / "summary.json").exists() if record is None else not record.in_python:
        raise ConfigurationError(f"out = {str(folder)!r} already has another kind of run; choose a new folder")
    if record is None and not nothing_begun(folder) and any((folder / name).exists() for name in OTHERS):
        raise ConfigurationError(f"out = {str(folder)!r} is not the folder of a call's run; choose a new folder")


def check_call(run: BaseRun) -> None:
    """Raise ConfigurationError if a folder has the run of another call, or for settings that cannot be written."""
    if (record := read_run_file(run.folder)) is not None:
        check_spec(run.folder, record, run.spec)
    else:
        described(run.spec)


OTHERS = ("state", "splits.json", "grid.json", "silo.json")
"""Files of other kinds of runs."""
