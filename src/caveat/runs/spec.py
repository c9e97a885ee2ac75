"""The specification of a run: a frozen value, from a configuration, a Python call or a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from ..config import Config, Evaluation, Federation, check_personal
from ..core import ConfigurationError, Data, DataError, Method, SiloContext, SiloId, State, Tensors, key, seeded
from ..core.quantity import Quantity, Times, check_classes_only
from ..core.settings import MAX_COUNT
from ..core.silo import FederationInfo, positive_class
from ..data import Silos, load
from ..data.settings import DataSettings
from ..engines.executor import channels_last
from ..engines.rounds import Participation
from ..metrics.custom_metrics import OwnMetric, check_known, known_metrics
from ..nn.frozen import FrozenEncoder, digest_of, taken_off
from ..nn.model_checks import Said, said_of
from ..nn.models import ModelSettings, PersonalModel, assign, build_model
from ..secure.fixed_point import LEAST, threshold
from ..training.fit import LABELS, Training
from ..training.modules import tensors_of
from ..wrappers.aggregation import Robust
from ..wrappers.evaluation import Evaluated
from ..wrappers.privacy import Privacy
from ..wrappers.server_optimizers import ServerOptimizer
from ..wrappers.training_options import trained
from ..wrappers.uncertainty_settings import Uncertainty
from .fingerprints import CodeMade
from .initial_model import MadeModel, fits, initialized, read_model
from .newcomers import check_newcomers


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """All settings of a run, without the contents of its data. Stored in `run.json` of the run's folder, see
    `runs.spec_file`. Raises ConfigurationError for incompatible settings."""

    method: Method
    model: ModelSettings
    seed: int = 0
    federation: Federation = field(default_factory=Federation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    privacy: Privacy = field(default_factory=Privacy)
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    personal: tuple[PersonalModel, ...] = ()
    init_from: str | None = None
    """Folder of a run whose model initializes the global model."""
    data: DataSettings | None = None
    """The data settings; None if a Python program passes the silos."""
    baselines: tuple[Method, ...] = ()
    """Methods that are run afterwards on the same data, for comparison."""
    metrics: tuple[OwnMetric, ...] = ()
    """Custom metrics passed in a call; other metrics of `evaluation.metrics` are registered in this process."""

    def __post_init__(self) -> None:
        if not any(method.personal for method in self.baselines):
            check_personal(self.method, self.personal)
        patience, source = self.evaluation.early_stopping_patience, self.uncertainty.source
        if patience is not None and source in ("ensemble", "snapshots"):
            raise ConfigurationError(
                f"evaluation.early_stopping_patience = {patience} cannot be combined with uncertainty.source = "
                f"{source!r}, whose members need all rounds",
                "evaluation.early_stopping_patience",
            )
        if self.federation.secure:
            self._check_secure()
        elif self.privacy.where == "sum":
            raise ConfigurationError(
                "privacy.where = 'sum' needs federation.secure = true: without it, the server sees each silo's update, "
                "which has only a share of the noise",
                "privacy.where",
            )

    def _check_secure(self) -> None:
        """Raise ConfigurationError for settings with which the server needs messages of single silos."""
        settings = (
            ("evaluation.metrics", self.evaluation.metrics or self.metrics, "are functions of a silo's predictions"),
            ("federation.newcomers", self.newcomers, "are evaluated one by one"),
        )
        for key_, wrong, why in settings:
            if wrong:
                raise ConfigurationError(
                    f"{key_} cannot be used with federation.secure = true, in which only sums over {LEAST} silos or "
                    f"more leave the silos: {key_.rpartition('.')[2]} {why}",
                    key_,
                )

    def _check_sums(self, least: int, cohort: int) -> None:
        """Raise ConfigurationError for fewer silos in a round of training or evaluation than a secure sum needs."""
        evaluated = self.evaluation.n_silos or least
        for key_, count, what in (
            ("federation.secure", cohort, f"there are {cohort}"),
            ("evaluation.n_silos", evaluated, f"evaluation.n_silos = {evaluated}"),
        ):
            if count < least:
                raise ConfigurationError(
                    f"federation.secure = true needs at least {least} silos in every round (more than two thirds, "
                    f"and at least {LEAST}), but {what}: a sum over few silos reveals their numbers",
                    key_,
                )

    def read_silos(self) -> Silos:
        """Read the silos. Raises DataError for a run of a Python program, which passed them."""
        if self.data is None:
            raise DataError("the silos are in the Python program that made this run")
        return load(self.data, self.seed)

    @property
    def expected(self) -> int | None:
        """The expected number of silos, if they may join and leave; None if all are known before the first round."""
        on_site = self.data is not None and self.data.source == "on_site"
        return self.federation.min_available_silos or self.federation.quorum if on_site else None

    @property
    def known_metrics(self) -> tuple[OwnMetric, ...]:
        """The custom metrics whose code this process has (all of them where silos are evaluated)."""
        return known_metrics(self.evaluation.metrics, self.metrics)

    @property
    def participation(self) -> Participation:
        """The participation of silos in a round."""
        return Participation(self.seed, self.federation.participation, self.federation.min_silos)

    @property
    def robust(self) -> Robust:
        """The robust aggregation settings."""
        return Robust(self.federation.robust, self.federation.max_byzantine)

    @property
    def newcomers(self) -> tuple[SiloId, ...]:
        """Held-out silos, which take no part and are evaluated at the end."""
        return self.federation.newcomers

    @property
    def batch_size(self) -> int:
        """Minimum number of training examples of a silo: a batch, or two if the method has no batches."""
        return getattr(getattr(self.method, "training", None), "batch_size", 2)

    def participants(self, names: Sequence[SiloId]) -> Sequence[SiloId]:
        """Return the silos in `names` that take part, in order."""
        return [name for name in names if name not in self.newcomers] if self.newcomers else names

    def cohort_size(self, silos: int) -> int:
        """Return how many of `silos` silos, including newcomers, take part in a round if all are available."""
        return self.participation.count(self.population(silos))

    def population(self, silos: int) -> int:
        """Return how many of `silos` silos, including newcomers, take part in the run if all are available."""
        return self.expected or silos - len(self.newcomers)

    def noise_shares(self, silos: int) -> int:
        """Return the number of silos, out of `silos`, whose noise adds up to the noise that `privacy` requires."""
        return self.privacy.shares(self.cohort_size(silos), threshold(self.population(silos)))

    def measured(self, names: Sequence[SiloId]) -> list[SiloId]:
        """Return the participants that are evaluated: all, or a fixed selection of the configured number."""
        count, participants = self.evaluation.n_silos, self.participants(names)
        if count is None or count >= len(participants):
            return list(participants)
        generator = torch.Generator().manual_seed(key(self.seed, "measured"))
        chosen = torch.randperm(len(participants), generator=generator)[:count]
        return [participants[i] for i in sorted(chosen.tolist())]

    def complete_method(self, silos: int, subgroups: tuple[str, ...] = (), target: Quantity | None = None) -> Method:
        """Return the method for a number of silos with these subgroups of inputs and this quantity as their target, if
        any, wrapped by its training settings, server optimizer, privacy, uncertainty estimator, calibration and
        decisions.

        Raises ConfigurationError for settings that do not fit the method.
        """
        if (silos, subgroups, target) not in self._completed:
            method = self.server.around(trained(self.method, target))
            method = self.privacy.around(method, self.noise_shares(silos))
            method = self.robust.around(method, self.cohort_size(silos))
            self._completed[silos, subgroups, target] = self.uncertainty.around(
                method, self.population(silos), seed=self.seed, subgroups=subgroups, target=target
            )
        return self._completed[silos, subgroups, target]

    def evaluated(self, method: Method, subgroups: int = 0) -> Evaluated:
        """Return a method with evaluations of what it predicts."""
        return Evaluated(method, self.known_metrics, subgroups, self.federation.secure)

    @cached_property
    def _completed(self) -> dict[tuple[int, tuple[str, ...], Quantity | None], Method]:
        """Built methods by the number of silos, on which the noise of privacy depends, the subgroups and the target."""
        return {}

    def build(self, info: FederationInfo) -> nn.Module:
        """Return the method's module with weights from the seed, for inputs or for the features of a frozen encoder."""
        _, model = self._models(self.model, info)
        try:
            with seeded(self.seed, "build"):
                built = self.method.build(model)
                return built if self.model.own else channels_last(built)  # custom code may need its own memory layout
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            raise ConfigurationError(f"{self.method.name} on this model needs more memory than available") from None

    def code_made(self, info: FederationInfo) -> CodeMade | None:
        """Return fingerprints of the models made by custom code; None without such code."""
        models = [self.model, *(self.personal if self.method.personal else ())]
        if not any(settings.own for settings in models):
            return None
        return CodeMade([self._made_once(settings, info) for settings in models])

    def frozen_encoder(self, info: FederationInfo) -> FrozenEncoder | None:
        """Return the frozen encoder, whose features silos compute once, if there is one."""
        return self._models(self.model, info)[0]

    def first_module(self, info: FederationInfo) -> nn.Module:
        """Return the first module for inputs: the frozen encoder, or else the model."""
        frozen, model = self._models(self.model, info)
        return model if frozen is None else frozen.module

    def _models(self, settings: ModelSettings, info: FederationInfo) -> tuple[FrozenEncoder | None, nn.Module]:
        """Return a model's frozen encoder, and a copy of the rest of the model."""
        made = self._made_once(settings, info)
        return made.frozen, deepcopy(made.behind)

    def _made_once(self, settings: ModelSettings, info: FederationInfo) -> MadeModel:
        """Return an initial model; it is cached, because custom code may be slow."""
        place = settings, info.shape, info.classes, info.dtype
        if place not in self._made:
            model = build_model(settings, info.shape, len(info.classes), self.seed, info.dtype)
            digests, says = ("", ""), tuple[Said, ...]()
            if settings.own:
                digests = digest_of(model), digest_of(model, bits=False)
                says = said_of(model, info.shape, info.dtype)
            self._made[place] = MadeModel(*taken_off(model, info.shape, info.dtype), *digests, says)
        return self._made[place]

    @cached_property
    def _made(self) -> dict[object, MadeModel]:
        return {}

    def personal_settings(self, names: Sequence[SiloId]) -> dict[SiloId, ModelSettings]:
        """Return the architecture of each silo's personalized model; empty unless the method has such models."""
        return assign(self.personal, self.model, names) if self.method.personal else {}

    def build_personal_models(self, info: FederationInfo) -> dict[SiloId, nn.Module]:
        """Return the modules of personalized models, shared by silos with the same architecture; empty without them."""
        built: dict[ModelSettings, nn.Module] = {}
        personal = self.personal_settings(info.names)
        for settings in personal.values():
            if settings not in built:
                model = self._personal_model(settings, info)
                built[settings] = model if settings.own else channels_last(model)
        return {silo: built[settings] for silo, settings in personal.items()}

    def _personal_model(self, settings: ModelSettings, info: FederationInfo) -> nn.Module:
        frozen, behind = self._models(settings, info)
        usual = self.frozen_encoder(info)
        if (frozen and frozen.digest) != (usual and usual.digest):
            raise ConfigurationError(
                "personal: the features of a frozen encoder are computed once, so personalized models must have the "
                "frozen encoder of [model], or no frozen encoder if [model] has none",
                "personal",
            )
        return behind

    def server_context(self, info: FederationInfo) -> SiloContext:
        """Return the context of code at the server: no data, and a freshly initialized module."""
        none = Data(torch.zeros(0, *info.shape, dtype=info.dtype), torch.zeros(0, dtype=torch.long))
        return SiloContext("server", none, none, none, self.build(info))

    def init_server(self, info: FederationInfo, context: SiloContext, method: Method) -> State:
        """Return the server's state before the first round, of the method or of its wrappers. Raises ConfigurationError
        if the model cannot be initialized from the other run."""
        if self.init_from is not None:
            context = replace(context, module=self._warm(info, context.module, read_model(Path(self.init_from))))
        with seeded(self.seed, "init_server"):
            return method.init_server(context)

    def _warm(self, info: FederationInfo, module: nn.Module, tensors: Tensors) -> nn.Module:
        """Return the method's module with the weights of another run, whose model is this method's or a plain one."""
        if fits(module, tensors):
            return initialized(module, tensors)
        _, model = self._models(self.model, info)
        if not fits(model, tensors):
            # Sorted, because the order of tensors in a file varies.
            name = next((name for name in sorted(tensors) if name not in tensors_of(module)), min(tensors, default=""))
            raise ConfigurationError(
                f"{{key}} = {self.init_from!r}: its model has {name!r}, which {self.method.name!r} on this model "
                "lacks; use a run with the same model, by the same method or one that sends a plain model (fedavg)",
                "init_from",
            )
        with seeded(self.seed, "build"):
            return self.method.build(initialized(model, tensors))

    def baseline(self, method: Method, rounds: int | None = None) -> RunSpec:
        """Return the specification of a baseline of this run, with `rounds` training rounds if given."""
        return replace(
            self, method=with_rounds(method, rounds), uncertainty=self.uncertainty.fitting(method), baselines=(),
            personal=self.personal if method.personal else (),
        )  # fmt: skip

    def check(self, info: FederationInfo) -> None:
        """Raise ConfigurationError for settings that do not fit these silos, before anything runs."""
        check_schedule(self.method)
        self.check_classes(info)
        check_known(self.evaluation.metrics, self.metrics)
        if self.newcomers:
            check_newcomers(self.newcomers, info.names, self.method, lambda: self.server_context(info), self.seed)
        self.privacy.check()
        self.check_quantity(info)
        if isinstance(training := getattr(self.method, "training", None), Training):
            training.check_classes(len(info.classes))
        context = self.server_context(info)
        for silo, own in self.build_personal_models(info).items():
            if why := self.method.mismatch(context.module, own):
                raise ConfigurationError(
                    f"{self.method.name}: the personalized model of silo {silo!r} {why}", "personal"
                )
        self.complete_method(len(info), info.subgroups, info.target)
        if self.federation.secure:
            self._check_sums(threshold(self.population(len(info))), self.cohort_size(len(info)))
        server = self.init_server(info, context, self.method)  # raises if a custom module lacks something
        if self.init_from is not None and "model" not in self.method.broadcast(server):
            text = f"{{key}} = {self.init_from!r} has no effect for {self.method.name!r}, which has no global model"
            raise ConfigurationError(text, "init_from")
        least, count = self.participation.least, len(info) - len(self.newcomers)
        if least > count:
            suffix = " without federation.newcomers" if self.newcomers else ""
            raise ConfigurationError(
                f"federation.min_silos = {least}, but there are {count} silos{suffix}", "federation.min_silos"
            )

    def check_quantity(self, info: FederationInfo) -> None:
        """Raise ConfigurationError for settings that do not fit a quantity as the target."""
        if info.target is None:
            return
        if isinstance(training := getattr(self.method, "training", None), Training):
            training.leave(self.method.name, f"the target is a {info.target.predicts}", *LABELS)
        if isinstance(info.target, Times) and self.method.counts_classes:
            raise ConfigurationError(
                f"method {self.method.name!r} needs classes of training inputs, which censored times lack "
                "(data.predict = 'time')",
                "method.name",
            )
        for name in ("metrics", "target_sensitivity"):
            if getattr(self.evaluation, name):
                check_classes_only(info.target, f"evaluation.{name}")
        if self.privacy.clip_norm is not None and not info.target.declared:
            raise ConfigurationError(
                "data.range is missing: without it, bars are fitted to the targets of all silos, which [privacy] does "
                "not protect; set the lowest and the highest value, for example range = [0, 120]",
                "data.range",
            )

    def check_classes(self, info: FederationInfo) -> None:
        """Raise ConfigurationError for evaluation settings that do not fit the classes."""
        positive_class(info.positive, info.classes)
        if self.evaluation.target_sensitivity is not None and len(info.classes) != 2:
            raise ConfigurationError(
                f"evaluation.target_sensitivity = {self.evaluation.target_sensitivity} needs two classes, but there "
                f"are {len(info.classes)}",
                "evaluation.target_sensitivity",
            )


def spec_of(config: Config, name: str | None = None) -> RunSpec:
    """Return the specification of a configuration, for its method or for a baseline with its own defaults."""
    method, baselines = config.build_method(), {each: config.build_method(each) for each in config.baselines}
    same = ("model", "seed", "federation", "evaluation", "uncertainty", "privacy", "server", "init_from", "data")
    spec = RunSpec(
        method=method,
        personal=config.personal if any(each.personal for each in (method, *baselines.values())) else (),
        baselines=tuple(baselines.values()),
        **{name: getattr(config, name) for name in same},
    )
    return spec if name in (None, config.method.name) else spec.baseline(config.build_method(name))


def with_rounds(method: Method, rounds: int | None) -> Method:
    """Return the method with `rounds` training rounds, if given and if it has such a field."""
    if rounds is None or not hasattr(method, "rounds"):
        return method
    return replace(method, rounds=rounds)  # type: ignore[type-var]


def check_schedule(method: Method) -> None:
    """Raise ConfigurationError for a schedule with too many rounds."""
    if next(islice(method.schedule(), MAX_COUNT, None), None) is not None:
        raise ConfigurationError(f"the schedule of {method.name!r} has more than {MAX_COUNT:,} rounds", "rounds")
