"""Silos that join a finished federation, in their own folder; the federation's run does not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import data, metrics
from ..config import Federation
from ..core import ConfigurationError, DataError, Method, SiloContext, SiloId, State, horizon
from ..core.quantity import Quantity
from ..data.agreement import own_settings, own_silos
from ..data.quantities import labels_of
from ..data.settings import OodSettings, Partition, Shift
from ..data.shared_schema import SharedColumn, SharedSchema
from ..data.user_data import with_augment
from ..engines.silos_on_device import one_thread
from ..files import ServerStore, locked, record_of, write_record
from ..files.schema import SCHEMA, JoinFile
from ..wrappers.base import find
from ..wrappers.ensembles import Ensemble
from ..wrappers.evaluation import TEST
from ..wrappers.joining import Joining
from .call_arguments import check_call, check_folder
from .execution import execute
from .finished_run import JOINED, Run
from .local_run import LocalRun
from .progress import Progress, Silent
from .spec import RunSpec

DEFAULT_ROUNDS = 5
"""Default number of training rounds for joining."""


@dataclass(frozen=True)
class Finished:
    """The parts of a finished federation that joining needs."""

    folder: Path
    spec: RunSpec
    preparation: data.Preparation
    silos: int
    """Number of silos that took part."""
    took_part: Sequence[SiloId]
    server: State = field(repr=False)
    sha256: str
    """SHA-256 of the server's state file."""
    trained: int
    """Number of training rounds of the federation."""

    @property
    def most(self) -> int:
        """Maximum number of training rounds for joining."""
        ensemble = find(self.spec.complete_method(self.silos, target=self.preparation.target), Ensemble)
        return self.trained // (1 if ensemble is None else ensemble.ensemble_size)

    @classmethod
    def of(cls, run: Run) -> Finished:
        """Read a finished run. Raises ConfigurationError without the last server state, DataError for damaged files."""
        inner = run.experiment
        saved = ServerStore(run.folder / "state").load() if (run.folder / "state").is_dir() else None
        if saved is None:
            raise ConfigurationError(
                f"{run.folder} does not have the server's last state, which joining needs; pass the folder of the run "
                "itself"
            )
        schedule = list(inner.complete_method.schedule())
        if saved.checkpoint.t < horizon(schedule) - 1 and not saved.checkpoint.stopped:
            raise ConfigurationError(f"{run.folder} has not finished training")
        known = saved.checkpoint.files[f"state/{saved.checkpoint.server}"].sha256 if saved.checkpoint.files else None
        return cls(
            run.folder, inner.spec, run.preparation, len(inner.info), inner.participants, saved.server,
            known or "", saved.checkpoint.number,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JoinRun(LocalRun):
    """The rounds that joining silos run by themselves."""

    finished: Finished
    rounds: int

    @cached_property
    def complete_method(self) -> Method:
        known = self.finished.preparation
        base = self.spec.complete_method(self.finished.silos, known.subgroup_names, known.target)
        return Joining(base, self.rounds, self.finished.trained)

    @property
    def can_be_extended(self) -> bool:
        return False

    @property
    def fixed(self) -> list[str]:
        return [*super().fixed, JOINED]

    def check(self) -> None:
        super().check()
        self.complete_method.schedule()

    def first_state(self, context: SiloContext) -> State:
        """Return the last server state of the finished federation."""
        return self.finished.server

    def prepare(self) -> None:
        super().prepare()
        if not (self.folder / JOINED).exists():
            about = {"federation": str(self.finished.folder), "server": self.finished.sha256, "rounds": self.rounds}
            record = {"schema": SCHEMA, **about, "before": self.before()}
            write_record(self.folder / JOINED, JoinFile.model_validate(record), lasting=True)

    def before(self) -> dict[str, dict[str, float]]:
        """Return metrics of the silos' test splits for a silo that has only the broadcast model. No decision depends on
        them."""
        executor, down = self.executor(), self.complete_method.broadcast(self.finished.server)
        t = horizon(self.complete_method.schedule())
        with one_thread():
            found = {silo: executor.perform(t, TEST, down, silo, None).update.payload for silo in self.measured}
        return {silo: metrics.figures(payload["sums"]) for silo, payload in found.items()}


def join(run: Run, silos: data.Silos | None, rounds: int | None, out: Path, progress: Progress | None = None) -> Run:
    """Add silos to the federation of a finished run, with `rounds` training rounds; `out` is their folder.

    By default, the run's newcomers join, with 5 rounds, or fewer if the federation took fewer. If the call is
    interrupted, repeat it to continue. Raises ConfigurationError or DataError, before anything runs, for silos with
    data unlike the federation's, and for an unsuitable folder.
    """
    finished = Finished.of(run)
    joining = newcomers_of(run) if silos is None else _with_bars(silos, finished.preparation.target)
    check_alike(finished, joining)
    inner = run.experiment
    found = JoinRun(
        folder=out, spec=spec_of_joining(inner.spec), silos=joining, devices=inner.devices, finished=finished,
        rounds=min(DEFAULT_ROUNDS, finished.most) if rounds is None else rounds,
    )  # fmt: skip
    found.check()
    check_folder(out)
    _check_begun(found)
    check_call(found)
    with locked(out / "state"):
        check_folder(out)
        check_call(found)
        execute(found, progress or Silent(), f"joining, {finished.spec.method.name}")
    return Run(found)


def newcomers_of(run: Run) -> data.Silos:
    """Return the held-out silos of a run. Raises ConfigurationError if there are none."""
    names = run.experiment.spec.newcomers
    if not names:
        raise ConfigurationError(
            f"{run.folder} has no newcomers (federation.newcomers); pass the data of the silo that joins", "silos"
        )
    return some_of(run.silos, names)


def own_silos_of(run: Run, source: str, name: SiloId) -> data.Silos:
    """Return a silo from its own source, in the format of the run's sources, encoded like the run's silos.

    Raises ConfigurationError for a Python run, which has no sources, or if one silo cannot read such a source;
    DataError for data that do not fit.
    """
    spec = run.experiment.spec
    if spec.data is None:
        raise ConfigurationError(
            f"{run.folder} is a run of a Python program without data files; pass the joining silos to caveat.join"
        )
    if run.preparation.sequence_format is not None:
        raise ConfigurationError(f"{run.folder} is a run on sequences; pass the joining silos to caveat.join")
    plain = dataclasses.replace(
        spec.data, n_silos=None, silo_column=None, samples_per_silo=None, test_per_silo=None, shift=Shift(),
        partition=Partition(),
        ood=OodSettings(),
    )  # fmt: skip
    if (known := run.preparation.subgroups) is not None:  # the silo need not have all subgroups
        plain = dataclasses.replace(
            plain, subgroup_values=known.values, subgroup_edges=known.edges, subgroup_quantiles=None
        )
    settings = own_settings(plain, source)
    made = own_silos(settings, spec.seed, name, _shared(run.preparation, settings.size))
    return with_augment(made, settings.augment or None)


def name_of(source: str) -> SiloId:
    """Return the default name of a silo whose source is a file or a folder."""
    return Path(source.partition(":")[2] or source).stem


def _shared(known: data.Preparation, size: int | None) -> SharedSchema:
    """Return the schema of a federation, from the preparation of its inputs."""
    layout = _layout(known)
    if known.images:
        channels, height, width = known.shape
        found = SharedSchema(known.classes, (height, width, channels), size)
    elif layout is None:
        found = SharedSchema(known.classes, known.shape)
    else:
        columns = (SharedColumn(each.name, each.categories, each.name in layout.flagged) for each in layout.columns)
        found = SharedSchema(known.classes, (len(layout.columns),), None, tuple(columns))
    return found if known.target is None else found.predicting(known.target)


def _with_bars(silos: data.Silos, target: Quantity | None) -> data.Silos:
    """Return silos with labels for the bars of a federation, if the kinds of their targets are equal."""
    if target is None or type(target) is not type(silos.target):
        return silos
    made = []
    for silo in silos:
        train = silo.values["train"]
        parts = {name: getattr(silo, name).labeled(labels_of(y, train, target)) for name, y in silo.values.items()}
        made.append(dataclasses.replace(silo, **parts))
    return dataclasses.replace(silos, silos=tuple(made), classes=target.classes, target=target)


def some_of(silos: data.Silos, names: Sequence[SiloId]) -> data.Silos:
    """Return some of the silos, with the preparation of their inputs."""
    encoders = {name: each for name, each in silos.encoders.items() if name in names}
    scalings = {name: each for name, each in silos.scalings.items() if name in names}
    return dataclasses.replace(
        silos, silos=tuple(silos.named(name) for name in names), encoders=encoders, scalings=scalings
    )


def check_alike(finished: Finished, silos: data.Silos) -> None:
    """Raise DataError for silos with other classes or inputs than the federation's, or with a name that took part."""
    known, given = finished.preparation, silos.preparation
    for name in silos.names:
        if name in finished.took_part:
            raise DataError(f"silo {name!r} took part in {finished.folder}; use another name for the joining silo")
    about: tuple[tuple[str, Any, Any], ...] = (
        ("the targets", _predicts(known), _predicts(given)),
        ("the classes", known.classes, given.classes),
        ("the shape of inputs", known.shape, given.shape),
        ("the type of inputs", known.dtype, given.dtype),
        ("data.normalize", known.normalize, given.normalize),
        ("the columns", _layout(known), _layout(given)),
        ("the format of sequences", known.sequence_format, given.sequence_format),
        ("the subgroups", known.subgroups, given.subgroups),
    )
    for what, theirs, own in about:
        if theirs != own:
            names = ", ".join(silos.names)
            raise DataError(f"{what} of {names}: found {own}, expected {theirs} as in {finished.folder}")


def _predicts(preparation: data.Preparation) -> str:
    return preparation.target.predicts if preparation.target is not None else "classes"


def _layout(preparation: data.Preparation) -> Any:
    """Return the encoding of table rows; None without tables."""
    first = next(iter(preparation.encoders.values()), None)
    return None if first is None else first.layout


def spec_of_joining(spec: RunSpec) -> RunSpec:
    """Return the specification for joining silos: the federation's, with all silos in all rounds. A guarantee covers
    the silo only, because a guarantee for the federation was calibrated without it."""
    uncertainty = spec.uncertainty
    if (uncertainty.policy or spec.method.policy) == "guaranteed":
        uncertainty = dataclasses.replace(uncertainty, guarantee_scope="silo", familywise=None)
    evaluation = dataclasses.replace(spec.evaluation, n_silos=None, early_stopping_patience=None)
    return dataclasses.replace(
        spec,
        federation=Federation(),
        evaluation=evaluation,
        uncertainty=uncertainty,
        init_from=None,
        data=None,
        baselines=(),
    )


def _check_begun(run: JoinRun) -> None:
    """Raise ConfigurationError if the folder has other silos, or silos that joined another federation."""
    begun = record_of(run.folder / JOINED, JoinFile)
    if begun is None:
        return
    if begun.server != run.finished.sha256:
        raise ConfigurationError(
            f"out = {str(run.folder)!r} belongs to silos that joined {begun.federation}; use a new folder", "out"
        )
    if begun.rounds != run.rounds:
        raise ConfigurationError(
            f"out = {str(run.folder)!r} has a join with {begun.rounds} rounds, not {run.rounds}; use a new folder",
            "rounds",
        )
