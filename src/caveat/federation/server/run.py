"""A run at the server: the same folder and the same loop over rounds as on one machine, with remote silos."""

import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from ... import metrics
from ...config import Config
from ...core import ConfigurationError, DataError, Payload, SiloId, Tensors, horizon
from ...core.devices import find_device
from ...core.quantity import Times
from ...core.silo import FederationInfo, SiloInfo
from ...data import load
from ...engines.flower import FlowerEngine, silent
from ...engines.flower import Membership as Greeter
from ...engines.flower_grid import GridMessages
from ...engines.flower_secure import SecureServer
from ...engines.update_checks import VARIANCES
from ...files import RUN, ServerStore, held, locked, owner_only, read, write_json, write_record
from ...files.schema import SCHEMA, KeptState, Record, Started, Summary, as_json
from ...html.run.page import write_report
from ...runs.base import BaseRun, Engine
from ...runs.continuing_checks import check_begun
from ...runs.execution import execute
from ...runs.local_run import LocalRun
from ...runs.progress import Progress
from ...runs.run_metrics import GROUP, summarize_streams
from ...runs.spec import RunSpec, spec_of
from ...runs.spec_file import run_file
from ...runs.start import check_empty, keep_configuration
from ...runs.summary import rows, silo_record
from ...wrappers.evaluation import TEST
from ...wrappers.privacy import VARIANCE
from ..keys import SILO_KEYS, NameKeys
from ..project import STARTED
from ..refusals import check_federation
from ..request_terms import Terms, differing
from ..silo.store import OwnBooks
from .agreement import Confirmed, unlike_others
from .log import lock_of
from .membership import FixedMembership, OpenMembership


def check_measurement(run: BaseRun, split: str, silo: SiloId, payload: Payload) -> None:
    """Raise DataError for a silo's measurements on a split that do not fit the request, and all errors that a run's
    rows and summary would raise for them."""
    info, sums, tested = run.info.silo_infos[silo], payload["sums"], split == TEST
    if int(sums["examples"]) != info.examples[split]:
        raise DataError(f"sums of {int(sums['examples'])} inputs of {split}, but the silo has {info.examples[split]}")
    scores = {f"score.{name}" for name in run.complete_method.scores} if tested else set()
    name, shape = "class_bin_count", torch.Size((len(run.info.classes), metrics.BINS))
    if run.info.target is not None:
        name, shape = "comparable" if isinstance(run.info.target, Times) else "squared", torch.Size()
    if tested and len(payload.get("subgroups", {}).get("examples", ())) != len(run.info.subgroups):
        raise DataError(f"expected sums of {len(run.info.subgroups)} subgroups")
    for group, tensors in payload.items():
        if group.rpartition(".")[2] in ("method", "choice", "skill", "subgroups", GROUP):
            continue
        if {name for name in tensors if name.startswith("score.")} != scores:
            raise DataError(f"{group} has invalid scores, expected {', '.join(sorted(scores)) or 'none'}")
        if tensors[name].shape != shape:
            raise DataError(f"{group}: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(shape)}")
    _check_classes(payload.get(GROUP, {}), run.info, info, tested)
    if "skill" in payload:
        _check_skill(payload["skill"], len(run.info.classes), info, tested)
    found: list[Record] = [*rows(run.method, info, payload, {"round": 1, "split": split})]
    if tested:
        found += [
            silo_record(run.complete_method, info, payload),
            *summarize_streams(run.method, {silo: payload}).values(),
        ]
    json.dumps([as_json(record) for record in found], allow_nan=False)


def _check_skill(sums: Tensors, classes: int, silo: SiloInfo, tested: bool) -> None:
    """Raise DataError for sums of skill over another split, or of another model."""
    if not tested or int(sums["inputs"]) != silo.examples["validation"]:
        raise DataError(f"skill on {int(sums['inputs'])} inputs, expected {silo.examples['validation']}")
    for name in ("in_sets", "calibration"):
        if name in sums and len(sums[name]) != classes:
            raise DataError(f"{name} has {len(sums[name])} classes, expected {classes}")


def _check_classes(sums: Tensors, federation: FederationInfo, silo: SiloInfo, tested: bool) -> None:
    """Raise DataError for sums over classes of another model or split, or over more inputs than possible."""
    known = tested and federation.target is None and len(federation.classes) <= metrics.MOST_CLASSES
    expected = len(federation.classes) if known else 0
    if len(sums.get("confusion", ())) != expected:
        raise DataError(f"confusion has {len(sums.get('confusion', ()))} classes, expected {expected}")
    if sums and sums["ranks"].shape[-1] != metrics.bins_of(expected):
        raise DataError(f"ranks have {sums['ranks'].shape[-1]} bins, expected {metrics.bins_of(expected)}")
    if "calibration" in sums and int(sums["calibration"].sum()) != (n := silo.examples["calibration"]):
        raise DataError(f"calibration counts {int(sums['calibration'].sum())} inputs, but the silo has {n}")


EVERY_ROUND = 0.0
"""Seconds between durable checkpoints, because silos keep only the states of the last rounds."""
PATIENCE = 600.0
"""Default of `federation.start_timeout` in seconds."""


@dataclass(frozen=True)
class StartCommand:
    """The command that started a run, for continuing it."""

    project: str
    sets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FlowerRun(BaseRun):
    """A run on silos whose data are on their own machines."""

    wire: GridMessages
    members: OpenMembership
    config: Config

    @property
    def sync_seconds(self) -> float:
        return EVERY_ROUND

    @property
    def info(self) -> FederationInfo:
        return self.members.info

    @property
    def counts(self) -> Mapping[SiloId, int]:
        return {silo: card.examples["train"] for silo, card in self.members.silo_infos.items()}

    @property
    def fixed(self) -> list[str]:
        """All fixed files except the record of splits, which grows when silos join."""
        return [name for name in super().fixed if name != "splits.json"]

    def engine(self) -> AbstractContextManager[Engine]:
        secure = None
        if self.config.federation.secure:
            secure = SecureServer(self.wire, self.members.secure_name, self.folder / "state" / "sums")
        return nullcontext(engine_of(self, self.config, self.wire, self.members, self.members.note, secure))

    def prepare(self) -> None:
        super().prepare()
        write_json(self.folder / "splits.json", self.members.records)


@dataclass(frozen=True, kw_only=True)
class SimulatedRun(LocalRun):
    """A run whose silos are nodes of this machine's simulation."""

    wire: GridMessages
    members: FixedMembership
    config: Config

    @property
    def sync_seconds(self) -> float:
        return EVERY_ROUND

    @property
    def can_be_extended(self) -> bool:
        return False

    def states_at_hand(self) -> list[KeptState]:
        books = (OwnBooks(self.folder / "state" / "silos" / name).read() for name in sorted(self.participants))
        last = [own.states[-1] for own in books if own is not None and own.states]
        return [kept for kept in last if kept.sha256 is not None]

    def engine(self) -> Any:
        return nullcontext(engine_of(self, self.config, self.wire, self.members))


def engine_of(
    run: BaseRun, config: Config, wire: GridMessages, members: Greeter, tell: Callable[[str], None] = silent,
    secure: SecureServer | None = None,
) -> FlowerEngine:  # fmt: skip
    bounds = {key: getattr(config.federation, key) for key in ("quorum", "round_timeout", "start_timeout")}
    given = {key: value for key, value in bounds.items() if value is not None}
    # Noise may make a variance negative; the server then keeps the old one.
    variances = VARIANCES if config.privacy.clip_norm is None else VARIANCES - {VARIANCE}
    read = partial(check_measurement, run)
    method, draws = run.spec.evaluated(run.complete_method), run.spec.participation.share < 1
    return FlowerEngine(
        method, wire, members, variances=variances, read=read, tell=tell, draws=draws, secure=secure, **given
    )


def serve(config: Config, grid: Grid, folder: Path, progress: Progress, start: StartCommand | None = None) -> Path:
    """Run a federation in a new folder, or continue the run in an existing one; return the folder.

    Raises ConfigurationError if the folder has a run with another configuration, RunError if there are too few silos or
    another process uses the folder.
    """
    if config.engine.name != "flower":
        raise ConfigurationError(f"engine.name = {config.engine.name!r}, expected 'flower'")
    if config.federation.secure and config.data.source != "on_site":
        raise ConfigurationError(
            "federation.secure = true needs silos with keys, not a simulation on Flower: use engine.name = "
            "'single_machine', which has the same results",
            "federation.secure",
        )
    with held(lock_of(folder), f"{folder} is being run by another process"):
        if (folder / RUN).exists():
            check_same(folder, config)
        else:
            check_federation(config)
            check_empty(folder)
        apart = config.data.source == "on_site"
        run = _federate if apart else _simulate
        with owner_only() if apart else nullcontext():  # only the operator may read reports of silos
            run(config, GridMessages(grid), folder, progress, start)
            write_report(folder)
    return folder


def check_same(folder: Path, config: Config) -> None:
    """Raise ConfigurationError, naming the keys, for a configuration that differs from the run's."""
    if found := differing(run_file(folder).spec, config):
        raise ConfigurationError(
            f"{folder} has a different configuration: {found}; `caveat resume {folder} --project DIR` continues it "
            "with its original overrides; a different configuration needs a new folder"
        )


def _federate(config: Config, wire: GridMessages, folder: Path, progress: Progress, start: StartCommand | None) -> None:
    wanted = config.federation.min_available_silos or config.federation.quorum or 1
    operated = Path(start.project) / SILO_KEYS if start is not None and start.project else None
    keys, confirmed = NameKeys(operated), Confirmed(operated)
    keys.given(), confirmed.read()  # first, to report unreadable files
    for name, part, rounds in _unfinished(config, folder):
        terms = Terms(secrets.token_hex(8), config, name, "", (), rounds=_other(rounds, config))
        members = OpenMembership(folder / "federation.json", terms, progress.note, keys=keys, confirmed=confirmed)
        spec = spec_of(rounds, name)
        if members.path.exists():
            members.restore()
            if _has_trained(spec, part, members.info):
                members.close()
        members.gather(wire, wanted, config.federation.quorum or 1, config.federation.start_timeout or PATIENCE)
        for line in unlike_others(members.silo_infos, members.agreement.classes):
            progress.note(f"warning: {line}")
        spec.check_classes(members.info)
        spec.check_quantity(members.info)
        run = FlowerRun(
            spec=spec, folder=part, wire=wire, members=members, config=config, engine_settings=config.engine
        )  # fmt: skip
        _begin(run, config, folder, start)
        members.save()
        with locked(part / "state"):
            check_begun(part)
            execute(run, progress, name)


def _has_trained(spec: RunSpec, part: Path, info: FederationInfo) -> bool:
    """Return whether the run in a folder, with these silos, has completed its last training round."""
    saved = ServerStore(part / "state").load() if (part / "state").is_dir() else None
    if saved is None:
        return False
    return saved.checkpoint.stopped or saved.checkpoint.t + 1 >= horizon(
        spec.complete_method(len(info), info.subgroups, info.target).schedule()
    )


def _simulate(config: Config, wire: GridMessages, folder: Path, progress: Progress, start: StartCommand | None) -> None:
    devices = (find_device(config.engine.device),)
    silos = load(config.data, config.seed)
    silos.check(config.training.batch_size)
    for name, part, rounds in _unfinished(config, folder):
        names = tuple(silo.name for silo in silos)
        terms = Terms("simulation", config, name, str(part), names, rounds=_other(rounds, config))
        members = FixedMembership(
            FederationInfo.of(
                silos.by_name,
                silos.names,
                silos.shape,
                silos.classes,
                silos.dtype,
                silos.positive,
                silos.subgroup_names,
                silos.target,
            ),
            terms,
        )
        spec = spec_of(rounds, name)
        spec.check_classes(members.info)
        run = SimulatedRun(
            spec=spec, folder=part, silos=silos, wire=wire, members=members, config=config, devices=devices,
            engine_settings=config.engine,
        )  # fmt: skip
        members.gather(wire, config.federation.start_timeout or PATIENCE)
        _begin(run, config, folder, start)
        with locked(part / "state"):
            check_begun(part)
            execute(run, progress, name)


def parts_of(config: Config, folder: Path) -> Iterator[tuple[str, Path, Config]]:
    """Yield the methods of a run, with their folders, and the configuration with their numbers of rounds."""
    for name in (config.method.name, *config.baselines):
        part = folder if name == config.method.name else folder / "baselines" / name
        own = config
        if part != folder:  # a baseline trains for the main method's number of rounds
            own = dataclasses.replace(config, rounds=read(folder / "summary.json", Summary).rounds_run)
        yield name, part, own


def _unfinished(config: Config, folder: Path) -> Iterator[tuple[str, Path, Config]]:
    yield from (each for each in parts_of(config, folder) if not (each[1] / "summary.json").exists())


def _begin(run: BaseRun, config: Config, folder: Path, start: StartCommand | None) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    if not (folder / RUN).exists():  # checked first, because a folder without it is not a run
        run.keep_description()
        keep_configuration(config, folder)
    if start is not None and start.project and not (folder / STARTED).exists():
        write_record(
            folder / STARTED,
            Started.model_validate({"schema": SCHEMA, "project": start.project, "set": list(start.sets)}),
        )


def _other(own: Config, config: Config) -> int | None:
    """Return the rounds of a method if they differ from the configuration's."""
    return None if own.rounds == config.rounds else own.rounds
