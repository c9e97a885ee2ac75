"""Silos that join a finished federation, in a folder of their own: its run is read, and nothing of it changes."""

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
from ..data.agreement import own_settings, own_silos
from ..data.schemas import SharedColumn, SharedSchema
from ..data.settings import OodSettings, Partition, Shift
from ..data.user_data import with_augment
from ..engines.placement import one_thread
from ..files.checkpoints import ServerStore
from ..files.reading import record_of
from ..files.schema import JoinFile
from ..files.schema.record import SCHEMA
from ..files.writing import locked, write_record
from ..wrappers.base import find
from ..wrappers.estimators import Ensemble
from ..wrappers.evaluation import TEST
from ..wrappers.joining import Joining
from .execution import carry_out
from .local import LocalRun, Run
from .progress import Progress, Silent
from .python_calls import check_call, check_folder
from .spec import RunSpec

JOINED = "join.json"
DEFAULT_ROUNDS = 5
"""Rounds of training in which silos join, unless a user says otherwise."""


@dataclass(frozen=True)
class Finished:
    """A finished federation, as far as joining takes it."""

    folder: Path
    spec: RunSpec
    preparation: data.Preparation
    silos: int
    """How many took part."""
    took_part: Sequence[SiloId]
    server: State = field(repr=False)
    sha256: str
    """Of the file of the server's state."""
    trained: int
    """Rounds of training that it made."""

    @property
    def most(self) -> int:
        """The most rounds of training in which a silo can join."""
        ensemble = find(self.spec.complete_method(self.silos), Ensemble)
        return self.trained // (1 if ensemble is None else ensemble.ensemble_size)

    @classmethod
    def of(cls, run: Run) -> Finished:
        """Raises ConfigurationError where the server's last state is not in the folder, DataError if it is damaged."""
        inner = run.experiment
        saved = ServerStore(run.folder / "state").load() if (run.folder / "state").is_dir() else None
        if saved is None:
            raise ConfigurationError(
                f"{run.folder} does not hold the last state of a federation's server, which a silo needs to join; give "
                "the folder of the run itself"
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
    """The rounds that silos carry out by themselves to join a federation."""

    finished: Finished
    rounds: int

    @cached_property
    def complete_method(self) -> Method:
        base = self.spec.complete_method(self.finished.silos)
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
        """The last one of the finished federation."""
        return self.finished.server

    def prepare(self) -> None:
        super().prepare()
        if not (self.folder / JOINED).exists():
            about = {"federation": str(self.finished.folder), "server": self.finished.sha256, "rounds": self.rounds}
            record = {"schema": SCHEMA, **about, "before": self.before()}
            write_record(self.folder / JOINED, JoinFile.model_validate(record), lasting=True)

    def before(self) -> dict[str, dict[str, float]]:
        """By silo, figures of its test split with what every newcomer has: what is broadcast, and nothing of its own.

        Nothing is decided by them.
        """
        executor, down = self.executor(), self.complete_method.broadcast(self.finished.server)
        t = horizon(self.complete_method.schedule())
        with one_thread():
            found = {silo: executor.perform(t, TEST, down, silo, None).update.payload for silo in self.measured}
        return {silo: metrics.figures(payload["sums"]) for silo, payload in found.items()}


def join(run: Run, silos: data.Silos | None, rounds: int | None, out: Path, progress: Progress | None = None) -> Run:
    """Have silos join the federation of a finished run, in `rounds` rounds of training; `out` is their folder.

    That is 5 of them where none are given, or as many as the federation made. Without `silos` those join that the run
    knew as newcomers. The same call goes on with what was interrupted. Raises ConfigurationError or DataError, before
    anything runs, for silos whose data are not like those of the federation, and for a folder that holds other things.
    """
    finished = Finished.of(run)
    joining = newcomers_of(run) if silos is None else silos
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
        carry_out(found, progress or Silent(), f"joining, {finished.spec.method.name}")
    return Run(found)


def newcomers_of(run: Run) -> data.Silos:
    """The silos that a run measured without training on them. Raises ConfigurationError if there are none."""
    names = run.experiment.spec.newcomers
    if not names:
        raise ConfigurationError(
            f"{run.folder} has no newcomers (federation.newcomers): give the data of the silo that is to join", "silos"
        )
    return some_of(run.silos, names)


def own_silos_of(run: Run, source: str, name: SiloId) -> data.Silos:
    """A silo of a name from a source of its own, written as those of the run, and encoded as what it has learnt.

    Raises ConfigurationError for a run in Python, which has no sources, and where one silo cannot read such a source;
    DataError for data that do not fit.
    """
    spec = run.experiment.spec
    if spec.data is None:
        raise ConfigurationError(
            f"{run.folder} is of a run in Python, whose data are no files: caveat.join takes the silos that are to join"
        )
    if run.preparation.sequence_format is not None:
        raise ConfigurationError(f"{run.folder} is of sequences: caveat.join takes the silos that are to join")
    plain = dataclasses.replace(
        spec.data, n_silos=None, silo_column=None, samples_per_silo=None, test_per_silo=None, shift=Shift(),
        partition=Partition(),
        ood=OodSettings(),
    )  # fmt: skip
    settings = own_settings(plain, source)
    made = own_silos(settings, spec.seed, name, _shared(run.preparation, settings.size))
    return with_augment(made, settings.augment or None)


def name_of(source: str) -> SiloId:
    """What a silo is called whose source is a file or a folder, unless somebody says otherwise."""
    return Path(source.partition(":")[2] or source).stem


def _shared(known: data.Preparation, size: int | None) -> SharedSchema:
    """What a federation's silos have in common, by what prepares their inputs."""
    if known.images:
        channels, height, width = known.shape
        return SharedSchema(known.classes, (height, width, channels), size)
    layout = _layout(known)
    if layout is None:
        return SharedSchema(known.classes, known.shape)
    columns = tuple(SharedColumn(each.name, each.categories, each.name in layout.flagged) for each in layout.columns)
    return SharedSchema(known.classes, (len(columns),), None, columns)


def some_of(silos: data.Silos, names: Sequence[SiloId]) -> data.Silos:
    """Some of the silos, with what prepares their inputs."""
    encoders = {name: each for name, each in silos.encoders.items() if name in names}
    scalings = {name: each for name, each in silos.scalings.items() if name in names}
    return dataclasses.replace(
        silos, silos=tuple(silos.named(name) for name in names), encoders=encoders, scalings=scalings
    )


def check_alike(finished: Finished, silos: data.Silos) -> None:
    """Raises DataError for silos with other classes or inputs than the federation's, or of a name that took part."""
    known, given = finished.preparation, silos.preparation
    for name in silos.names:
        if name in finished.took_part:
            raise DataError(f"silo {name!r} took part in {finished.folder}; a silo that joins needs a name of its own")
    about: tuple[tuple[str, Any, Any], ...] = (
        ("the classes", known.classes, given.classes),
        ("inputs of shape", known.shape, given.shape),
        ("inputs of type", known.dtype, given.dtype),
        ("data.normalize", known.normalize, given.normalize),
        ("the columns", _layout(known), _layout(given)),
        ("sequences", known.sequence_format, given.sequence_format),
    )
    for what, theirs, own in about:
        if theirs != own:
            raise DataError(f"{what} {own} of {', '.join(silos.names)}: expected {theirs}, as in {finished.folder}")


def _layout(preparation: data.Preparation) -> Any:
    """What rows of a table are encoded to; None where there are none."""
    first = next(iter(preparation.encoders.values()), None)
    return None if first is None else first.layout


def spec_of_joining(spec: RunSpec) -> RunSpec:
    """What silos that join are to carry out: the federation's own, all of them in all rounds, and measured in the end.

    A promise is a silo's own or there is none: that of a federation was tested without it.
    """
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
    """Raises ConfigurationError if other silos are in the folder, or joined another federation there."""
    begun = record_of(run.folder / JOINED, JoinFile)
    if begun is None:
        return
    if begun.server != run.finished.sha256:
        raise ConfigurationError(f"out = {str(run.folder)!r} is of silos that joined {begun.federation}", "out")
    if begun.rounds != run.rounds:
        raise ConfigurationError(
            f"out = {str(run.folder)!r} is of a join in {begun.rounds} rounds, not {run.rounds}; name a new folder",
            "rounds",
        )
